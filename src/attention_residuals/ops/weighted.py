"""A read that also answers its weights, for looking at and for losses on them: plain, with both differentiable."""

import torch
from torch import Tensor

from attention_residuals.ops import loops
from attention_residuals.ops.checks import exact_precision


def weighted_read(sources: list[Tensor], folded: Tensor, eps: float, gain: float) -> tuple[Tensor, Tensor]:
    """Mixture `[..., D]` and weights `[N, ...]` of one query, `folded [1, D]`."""
    return torch.ops.attention_residuals.weighted_read(sources, folded, eps, gain)[:2]


@torch.library.custom_op("attention_residuals::weighted_read", mutates_args=())
def _weighted_read(
    sources: list[Tensor], folded: Tensor, eps: float, gain: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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


@_weighted_read.register_fake
def _(sources: list[Tensor], folded: Tensor, eps: float, gain: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    first, count = sources[0], len(sources)
    tokens = first.numel() // first.shape[-1]
    return (
        first.new_empty(first.shape),
        folded.new_empty(count, *first.shape[:-1]),
        folded.new_empty(count, 1, tokens),
        folded.new_empty(count, tokens),
    )


@torch.library.custom_op("attention_residuals::weighted_read_backward", mutates_args=())
def _weighted_read_backward(
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


@_weighted_read_backward.register_fake
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
    grads, grad_folded = torch.ops.attention_residuals.weighted_read_backward(
        sources, folded, weights, logits, rstd, grad_mixed, grad_weights, ctx.gain
    )
    return grads, grad_folded, None, None


_weighted_read.register_autograd(_backward, setup_context=_setup_context)
