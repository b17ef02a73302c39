"""The read in two parts: many queries over one set of sources, and the online-softmax merge that joins such parts.

Two-phase execution (arXiv 2603.15031, Algorithm 1) evaluates all queries of a block over the closed sources at once,
then merges the open block's few sources read by read. Parts can be merged in any order and number.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.ops.checks import check_eps, check_sources, check_vector, fold, transformed
from attention_residuals.ops.native import native_kernels
from attention_residuals.ops.once import once_differentiable


class Partial(NamedTuple):
    """An unfinished read of some of the sources by R queries, in float32 (float64 for float64 sources).

    With logits s: `maximum = max_i s_i`, `total = sum_i exp(s_i - maximum)`, `values = sum_i exp(s_i - maximum) v_i`.
    Maximum and total stay apart, since one log-sum-exp in float32 loses digits when logits are large. `maximum` carries
    no gradient: whatever is made by merging and normalising does not depend on it.
    """

    values: Float[Tensor, "queries *tokens width"]
    maximum: Float[Tensor, "queries *tokens"]
    total: Float[Tensor, "queries *tokens"]

    def query(self, r: int) -> "Partial":
        """The part of query `r` alone, as a `Partial` of one query."""
        return Partial(self.values[r : r + 1], self.maximum[r : r + 1], self.total[r : r + 1])


def attn_res_partial(
    sources: Sequence[Float[Tensor, "*tokens width"]],
    queries: Float[Tensor, "queries width"],
    key_weights: Float[Tensor, "queries width"] | None = None,
    *,
    eps: float = 1e-6,
) -> Partial:
    """Read one set of sources with R queries at once, leaving the softmax open for a merge.

    Args:
        sources: N tensors `[..., D]` as for `attn_res`.
        queries: `[R, D]`, R >= 1.
        key_weights: `[R, D]`, each query's own weight of the RMSNorm on the keys; None means ones.
        eps: added to the mean square of a key before the root.

    Raises: as `attn_res`.
    """
    check_sources(sources)
    check_eps(eps)
    if queries.dim() != 2 or len(queries) == 0:
        raise ValueError(f"queries has shape {tuple(queries.shape)}; a batched read needs [R, D] with R >= 1")
    shape = (len(queries), sources[0].shape[-1])
    check_vector("queries", queries, shape, sources[0])
    if key_weights is not None:
        check_vector("key_weights", key_weights, shape, sources[0])
    folded = fold(queries, key_weights, sources[0].dtype)
    if transformed():
        mixed, maximum, total = _Transformed.apply(eps, folded, *sources)
    else:
        native_kernels(sources[0].device)
        mixed, maximum, total = torch.ops.attention_residuals.partial(list(sources), folded, eps)
    return Partial(mixed * total.unsqueeze(-1), maximum, total)


def merge(first: Partial, second: Partial) -> Partial:
    """Join two parts of the same R queries over different sources into one (online softmax)."""
    maximum = torch.maximum(first.maximum, second.maximum)
    scale_first = torch.exp(first.maximum - maximum)
    scale_second = torch.exp(second.maximum - maximum)
    return Partial(
        values=first.values * scale_first.unsqueeze(-1) + second.values * scale_second.unsqueeze(-1),
        maximum=maximum,
        total=first.total * scale_first + second.total * scale_second,
    )


def normalise(part: Partial, dtype: torch.dtype, *, gain: float = 1.0) -> Float[Tensor, "queries *tokens width"]:
    """Close the softmax: the mixtures `[R, ..., D]`, times `gain`, rounded once to `dtype`."""
    return (part.values * (gain / part.total).unsqueeze(-1)).to(dtype)


@torch.library.custom_op("attention_residuals::partial", mutates_args=())
def _partial(sources: list[Tensor], folded: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mixtures `[R, ..., D]` in the compute type, maximum and total `[R, ...]`."""
    mixed, maximum, total = torch.ops.attention_residuals.mix(sources, folded, eps, 1.0, True)
    shape = (len(mixed), *sources[0].shape[:-1])
    return torch.stack(mixed), maximum.view(shape), total.view(shape)


@_partial.register_fake
def _(sources: list[Tensor], folded: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    tokens, (queries, width) = sources[0].shape[:-1], folded.shape
    shapes = [(queries, *tokens, width), (queries, *tokens), (queries, *tokens)]
    mixed, maximum, total = (folded.new_empty(shape) for shape in shapes)
    return mixed, maximum, total


@torch.library.custom_op("attention_residuals::partial_backward", mutates_args=())
def _partial_backward(
    sources: list[Tensor],
    folded: Tensor,
    mixed: Tensor,
    maximum: Tensor,
    total: Tensor,
    grad_mixed: Tensor | None,
    grad_total: Tensor | None,
    eps: float,
) -> tuple[list[Tensor], Tensor]:
    """Gradients of the sources and of `folded`, with the maximum held constant. An absent gradient is zero.

    With e_i = exp(s_i - maximum) = w_i total, the gradient of a logit is w_i (<dm, v_i> - <dm, m>) + e_i dtotal: what
    comes of the total is one more term of the offset.
    """
    if grad_mixed is None:
        grad_mixed = torch.zeros_like(mixed)
    deltas = [torch.ops.attention_residuals.row_products(*rows) for rows in zip(grad_mixed, mixed, strict=True)]
    totals = [one.reshape(-1) for one in total]
    if grad_total is not None:
        deltas = [d - t * g.reshape(-1) for d, t, g in zip(deltas, totals, grad_total, strict=True)]
    maxima = [one.reshape(-1) for one in maximum]
    grads, sums, _ = torch.ops.attention_residuals.mix_backward(
        sources, [], folded, list(grad_mixed), maxima, totals, deltas, [], [], [], [1.0] * len(totals), eps
    )
    return grads, sums.sum(0)


@_partial_backward.register_fake
def _(
    sources: list[Tensor],
    folded: Tensor,
    mixed: Tensor,
    maximum: Tensor,
    total: Tensor,
    grad_mixed: Tensor | None,
    grad_total: Tensor | None,
    eps: float,
) -> tuple[list[Tensor], Tensor]:
    return [source.new_empty(source.shape) for source in sources], torch.empty_like(folded)


def _setup_context(ctx, inputs, output) -> None:
    sources, folded, ctx.eps = inputs
    mixed, maximum, total = output
    ctx.save_for_backward(*sources, folded, mixed, maximum, total)
    ctx.mark_non_differentiable(maximum)
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_mixed: Tensor | None, _maximum, grad_total: Tensor | None):
    *sources, folded, mixed, maximum, total = ctx.saved_tensors
    grads, grad_folded = torch.ops.attention_residuals.partial_backward(
        sources, folded, mixed, maximum, total, grad_mixed, grad_total, ctx.eps
    )
    return grads, grad_folded, None


_partial.register_autograd(_backward, setup_context=_setup_context)


class _Transformed(torch.autograd.Function):
    """The same operator for `torch.func`, which cannot see through one that takes a list of tensors."""

    @staticmethod
    def forward(eps: float, folded: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
        return torch.ops.attention_residuals.partial(list(sources), folded, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        eps, folded, *sources = inputs
        _setup_context(ctx, (sources, folded, eps), output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            grads, grad_folded, _ = _backward(ctx, *grad_outputs)
        inputs = [*ctx.saved_tensors, *grad_outputs]
        grad_folded, *grads = once_differentiable([grad_folded, *grads], inputs)
        return None, grad_folded, *grads
