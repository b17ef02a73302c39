"""`attn_res`: softmax attention over depth, one query, as one operator with an explicit backward."""

from collections.abc import Sequence
from typing import Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.ops.checks import check_read, fold, transformed
from attention_residuals.ops.native import native_kernels
from attention_residuals.ops.once import once_differentiable
from attention_residuals.ops.operators import LIBRARY
from attention_residuals.ops.partial import attn_res_partial, normalise
from attention_residuals.ops.weighted import weighted_read


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

    Memory: the backward keeps references to the sources and two scalars a token; nothing of a source's size.
    Differentiable once, in reverse mode, by autograd or `torch.func.grad`; `torch.func.jvp` and `vmap` do not pass
    through it, and with `return_weights` no transform does.

    Raises:
        ValueError: no sources, shapes or devices that do not fit, or a negative eps.
        TypeError: sources of different or non-floating types.
    """
    check_read(sources, query, key_weight, eps)
    sources = list(sources)
    if transformed() and not return_weights:
        vectors = query.unsqueeze(0), None if key_weight is None else key_weight.unsqueeze(0)
        return normalise(attn_res_partial(sources, *vectors, eps=eps), sources[0].dtype, gain=gain).squeeze(0)
    folded = fold(query, key_weight, sources[0].dtype).unsqueeze(0)
    if return_weights:
        return weighted_read(sources, folded, eps, gain)
    native_kernels(sources[0].device)
    return torch.ops.attention_residuals.read(sources, folded, eps, gain)[0]


LIBRARY.define("read(Tensor[] sources, Tensor folded, float eps, float gain) -> (Tensor, Tensor, Tensor)")


def _read(sources: list[Tensor], folded: Tensor, eps: float, gain: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mixture `[..., D]`, and for the backward the maximum and total of its logits, `[1, T]`."""
    mixed, maximum, total = torch.ops.attention_residuals.mix(sources, folded, eps, gain, False)
    return mixed[0], maximum, total


def _setup_context(ctx, inputs, output) -> None:
    sources, folded, ctx.eps, ctx.gain = inputs
    _, maximum, total = output
    ctx.save_for_backward(*sources, folded, maximum, total)
    ctx.mark_non_differentiable(maximum, total)
    ctx.set_materialize_grads(False)


def _backward(ctx, grad: Tensor | None, _maximum, _total):
    *sources, folded, maximum, total = ctx.saved_tensors
    if grad is None:
        return [None] * len(sources), None, None, None
    with torch.no_grad():
        grads, sums, _ = torch.ops.attention_residuals.mix_backward(
            sources, [], folded, [grad], [maximum], [total], [], [], [], [], [ctx.gain], ctx.eps
        )
        grad_folded = sums.sum(0)
    *grads, grad_folded = once_differentiable([*grads, grad_folded], [*sources, folded, grad])
    return grads, grad_folded, None, None


LIBRARY.impl("read", _read, "CompositeExplicitAutograd")
torch.library.register_fake("attention_residuals::read", _read, lib=LIBRARY)
torch.library.register_autograd("attention_residuals::read", _backward, setup_context=_setup_context, lib=LIBRARY)
