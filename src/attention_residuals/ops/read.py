"""`attn_res`: softmax attention over depth, one query, as one operator with an explicit backward."""

from collections.abc import Sequence
from typing import Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.ops import loops
from attention_residuals.ops.checks import check_read, exact_precision, fold


@overload
def attn_res(
    sources: Sequence[Float[Tensor, "*tokens width"]],
    query: Float[Tensor, "width"],
    key_weight: Float[Tensor, "width"] | None = None,
    *,
    eps: float = 1e-6,
    gain: float = 1.0,
    return_weights: Literal[False] = False,
) -> Float[Tensor, "*tokens width"]: ...


@overload
def attn_res(
    sources: Sequence[Float[Tensor, "*tokens width"]],
    query: Float[Tensor, "width"],
    key_weight: Float[Tensor, "width"] | None = None,
    *,
    eps: float = 1e-6,
    gain: float = 1.0,
    return_weights: Literal[True],
) -> tuple[Float[Tensor, "*tokens width"], Float[Tensor, "sources *tokens"]]: ...


def attn_res(
    sources: Sequence[Float[Tensor, "*tokens width"]],
    query: Float[Tensor, "width"],
    key_weight: Float[Tensor, "width"] | None = None,
    *,
    eps: float = 1e-6,
    gain: float = 1.0,
    return_weights: bool = False,
) -> Float[Tensor, "*tokens width"] | tuple[Float[Tensor, "*tokens width"], Float[Tensor, "sources *tokens"]]:
    """Mix earlier outputs by softmax attention over depth (arXiv 2603.15031, Eq. 2-4).

    `h = gain * sum_i softmax_i(<query, key_weight * RMSNorm(v_i)>) v_i`: keys are normalised, values are raw, and there
    is no 1/sqrt(D). A zero query gives the mean of the sources (their sum, with `gain=len(sources)`).

    Args:
        sources: N >= 1 tensors `[..., D]` of one shape, type and device; any strides; a tensor may come twice.
        query: `[D]`, any floating type.
        key_weight: `[D]`, the weight of the RMSNorm on the keys; None means ones.
        eps: added to the mean square of a key before the root.
        gain: factor on the mixture, applied before the one rounding to the output type.
        return_weights: also return the weights; they are differentiable and always sum to 1.

    Returns:
        The mixture `[..., D]` in the sources' type; with `return_weights`, also the weights `[N, ...]` in float32
        (float64 for float64 sources). Statistics, softmax and sums are carried in that type.

    Memory: the backward keeps references to the sources and 3N scalars a token; nothing of a source's size.
    Differentiable once, in reverse mode; forward-mode tangents (`torch.func.jvp`) do not pass through it.

    Raises:
        ValueError: no sources, shapes or devices that do not fit, or a negative eps.
        TypeError: sources of different or non-floating types.
    """
    check_read(sources, query, key_weight, eps)
    folded = fold(query, key_weight, sources[0].dtype).unsqueeze(0)
    mixed, weights, _, _ = torch.ops.attention_residuals.read(list(sources), folded, eps, gain)
    return (mixed, weights) if return_weights else mixed


@torch.library.custom_op("attention_residuals::read", mutates_args=())
def _read(sources: list[Tensor], folded: Tensor, eps: float, gain: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Mixture `[..., D]`, weights `[N, ...]`, and for the backward logits `[N, 1, T]` and inverse RMS `[N, T]`."""
    first = sources[0]
    with exact_precision(first):
        logits, rstd = loops.score(sources, folded, eps)
        weights = logits.softmax(0)
        mixed = loops.mix(sources, weights)
        if gain != 1.0:
            mixed *= gain
    return (
        mixed.to(first.dtype).view(first.shape),
        weights.view(len(sources), *first.shape[:-1]),
        logits,
        rstd,
    )


@_read.register_fake
def _(sources: list[Tensor], folded: Tensor, eps: float, gain: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    first, count = sources[0], len(sources)
    tokens = first.numel() // first.shape[-1]
    return (
        first.new_empty(first.shape),
        folded.new_empty(count, *first.shape[:-1]),
        folded.new_empty(count, 1, tokens),
        folded.new_empty(count, tokens),
    )


@torch.library.custom_op("attention_residuals::read_backward", mutates_args=())
def _read_backward(
    sources: list[Tensor],
    folded: Tensor,
    weights: Tensor,
    logits: Tensor,
    rstd: Tensor,
    grad_mixed: Tensor | None,
    grad_weights: Tensor | None,
    gain: float,
) -> tuple[list[Tensor], Tensor]:
    """Gradients of the sources and of `folded`; see `loops.input_gradients`. An absent gradient is zero."""
    weights = weights.reshape(logits.shape)
    with exact_precision(folded):
        if grad_mixed is None:
            grad_rows = folded.new_zeros(1, logits.shape[-1], folded.shape[-1])
        else:
            grad_rows = loops.rows(grad_mixed).unsqueeze(0)
            if gain != 1.0:
                grad_rows = grad_rows * gain
        grad = loops.weight_gradients(sources, grad_rows)
        if grad_weights is not None:
            grad = grad + grad_weights.reshape(logits.shape)
        grad_logits = weights * (grad - (weights * grad).sum(0))
        return loops.input_gradients(sources, folded, (logits, rstd), weights, grad_logits, grad_rows)


@_read_backward.register_fake
def _(
    sources: list[Tensor],
    folded: Tensor,
    weights: Tensor,
    logits: Tensor,
    rstd: Tensor,
    grad_mixed: Tensor | None,
    grad_weights: Tensor | None,
    gain: float,
) -> tuple[list[Tensor], Tensor]:
    return [source.new_empty(source.shape) for source in sources], torch.empty_like(folded)


def _setup_context(ctx, inputs, output) -> None:
    sources, folded, _, gain = inputs
    _, weights, logits, rstd = output
    ctx.save_for_backward(*sources, folded, weights, logits, rstd)
    ctx.mark_non_differentiable(logits, rstd)
    ctx.set_materialize_grads(False)
    ctx.gain = gain


def _backward(ctx, grad_mixed: Tensor | None, grad_weights: Tensor | None, _logits, _rstd):
    *sources, folded, weights, logits, rstd = ctx.saved_tensors
    grads, grad_folded = torch.ops.attention_residuals.read_backward(
        sources, folded, weights, logits, rstd, grad_mixed, grad_weights, ctx.gain
    )
    return grads, grad_folded, None, None


_read.register_autograd(_backward, setup_context=_setup_context)
