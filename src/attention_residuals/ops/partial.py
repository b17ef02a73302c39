"""The read in two parts: many queries over one set of sources, and the online-softmax merge that joins such parts.

Two-phase execution (arXiv 2603.15031, Algorithm 1) evaluates all queries of a block over the closed sources at once,
then merges the open block's few sources read by read. Parts can be merged in any order and number.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.ops import loops
from attention_residuals.ops.checks import check_eps, check_sources, check_vector, exact_precision, fold, transformed
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
        values, maximum, total, _, _ = _Transformed.apply(eps, folded, *sources)
    else:
        values, maximum, total, _, _ = torch.ops.attention_residuals.partial(list(sources), folded, eps)
    return Partial(values, maximum, total)


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
def _partial(sources: list[Tensor], folded: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Values, maximum, total, and for the backward logits `[N, R, T]` and inverse RMS `[N, T]`."""
    tokens = sources[0].shape[:-1]
    queries = folded.shape[0]
    with exact_precision(folded):
        logits, rstd = loops.score(sources, folded, eps)
        maximum = logits.amax(0)
        exponentials = torch.exp(logits - maximum)
        values = loops.mix(sources, exponentials)
        total = exponentials.sum(0)
    return (
        values.view(queries, *tokens, folded.shape[1]),
        maximum.view(queries, *tokens),
        total.view(queries, *tokens),
        logits,
        rstd,
    )


@_partial.register_fake
def _(sources: list[Tensor], folded: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    tokens = sources[0].shape[:-1]
    queries, width = folded.shape
    flat = sources[0].numel() // width
    return (
        folded.new_empty(queries, *tokens, width),
        folded.new_empty(queries, *tokens),
        folded.new_empty(queries, *tokens),
        folded.new_empty(len(sources), queries, flat),
        folded.new_empty(len(sources), flat),
    )


@torch.library.custom_op("attention_residuals::partial_backward", mutates_args=())
def _partial_backward(
    sources: list[Tensor],
    folded: Tensor,
    maximum: Tensor,
    logits: Tensor,
    rstd: Tensor,
    grad_values: Tensor | None,
    grad_total: Tensor | None,
) -> tuple[list[Tensor], Tensor]:
    """Gradients of the sources and of `folded`, with the maximum held constant. An absent gradient is zero."""
    queries, flat = logits.shape[1:]
    with exact_precision(folded):
        exponentials = torch.exp(logits - maximum.reshape(queries, flat))
        if grad_values is None:
            grad_rows = folded.new_zeros(queries, flat, folded.shape[1])
        else:
            grad_rows = grad_values.reshape(queries, flat, folded.shape[1])
        grad = loops.weight_gradients(sources, grad_rows)
        if grad_total is not None:
            grad = grad + grad_total.reshape(queries, flat)
        return loops.input_gradients(sources, folded, (logits, rstd), exponentials, exponentials * grad, grad_rows)


@_partial_backward.register_fake
def _(
    sources: list[Tensor],
    folded: Tensor,
    maximum: Tensor,
    logits: Tensor,
    rstd: Tensor,
    grad_values: Tensor | None,
    grad_total: Tensor | None,
) -> tuple[list[Tensor], Tensor]:
    return [source.new_empty(source.shape) for source in sources], torch.empty_like(folded)


def _setup_context(ctx, inputs, output) -> None:
    sources, folded, _ = inputs
    _, maximum, _, logits, rstd = output
    ctx.save_for_backward(*sources, folded, maximum, logits, rstd)
    ctx.mark_non_differentiable(maximum, logits, rstd)
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_values: Tensor | None, _maximum, grad_total: Tensor | None, _logits, _rstd):
    *sources, folded, maximum, logits, rstd = ctx.saved_tensors
    grads, grad_folded = torch.ops.attention_residuals.partial_backward(
        sources, folded, maximum, logits, rstd, grad_values, grad_total
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
        _, folded, *sources = inputs
        _setup_context(ctx, (sources, folded, None), output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> tuple[Tensor | None, ...]:
        with torch.no_grad():
            grads, grad_folded, _ = _backward(ctx, *grad_outputs)
        inputs = [*ctx.saved_tensors, *grad_outputs]
        grad_folded, *grads = once_differentiable([grad_folded, *grads], inputs)
        return None, grad_folded, *grads
