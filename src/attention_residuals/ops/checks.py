"""What every read checks before it computes, and the precision it computes in."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from attention_residuals.ops.loops import compute_dtype


def check_sources(sources: Sequence[Tensor]) -> None:
    """Refuse sources that cannot be mixed: none, or different shapes, types or devices."""
    if isinstance(sources, Tensor):
        raise TypeError("sources is one tensor; pass a sequence of tensors, for a stack sources.unbind(0)")
    if len(sources) == 0:
        raise ValueError("sources is empty; a read needs at least one tensor [..., D]")
    first = sources[0]
    if not first.dtype.is_floating_point:
        raise TypeError(f"sources have type {first.dtype}; a read needs a floating type")
    if first.dim() == 0 or first.shape[-1] == 0:
        raise ValueError(f"sources have shape {tuple(first.shape)}; a read needs [..., D] with D >= 1")
    for n, source in enumerate(sources[1:], 1):
        if source.shape != first.shape:
            raise ValueError(
                f"source {n} has shape {tuple(source.shape)} but source 0 has {tuple(first.shape)}; all must be equal"
            )
        if source.dtype != first.dtype:
            raise TypeError(f"source {n} has type {source.dtype} but source 0 has {first.dtype}; all must be equal")
        if source.device != first.device:
            raise ValueError(f"source {n} is on {source.device} but source 0 is on {first.device}; move one of them")


def check_vector(name: str, vector: Tensor, shape: tuple[int, ...], like: Tensor) -> None:
    """Refuse a query or key weight of another shape, type class or device than the sources need."""
    if tuple(vector.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(vector.shape)}; sources of width {like.shape[-1]} need {shape}")
    if not vector.dtype.is_floating_point:
        raise TypeError(f"{name} has type {vector.dtype}; a read needs a floating type")
    if vector.device != like.device:
        raise ValueError(f"{name} is on {vector.device} but the sources are on {like.device}; move one of them")


def check_eps(eps: float) -> None:
    """Refuse an eps that makes a root undefined; 0 is allowed, for sources that are not zero."""
    if not eps >= 0:
        raise ValueError(f"eps is {eps}; it must be at least 0, for example 1e-6")


def check_read(sources: Sequence[Tensor], query: Tensor, key_weight: Tensor | None, eps: float) -> None:
    """All checks of a single read: `query [D]`, `key_weight [D]` or None."""
    check_sources(sources)
    check_eps(eps)
    width = (sources[0].shape[-1],)
    check_vector("query", query, width, sources[0])
    if key_weight is not None:
        check_vector("key_weight", key_weight, width, sources[0])


def fold(query: Tensor, key_weight: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Query times key-norm weight in the compute type of sources of `dtype`; autograd splits the gradient again."""
    kind = compute_dtype(dtype)
    if key_weight is None:
        return query.to(kind)
    if query.dtype == key_weight.dtype == kind or torch.compiler.is_compiling() or transformed():
        return query.to(kind) * key_weight.to(kind)
    return _Folded.apply(query, key_weight, kind)


class _Folded(torch.autograd.Function):
    """`fold` of other types than the compute type, without tensors of that type in between."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key_weight: Tensor, kind: torch.dtype) -> Tensor:
        ctx.save_for_backward(query, key_weight)
        return query.to(kind, copy=True).mul_(key_weight)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad,) = grad_outputs
        query, key_weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # for a second derivative
            return (grad * key_weight).to(query.dtype), (grad * query).to(key_weight.dtype), None
        grad_query = torch.mul(grad, key_weight, out=torch.empty_like(query))
        return grad_query, torch.mul(grad, query, out=torch.empty_like(key_weight)), None


def transformed() -> bool:
    """Whether a function transform of `torch.func` is under way; a compiler sees through those by itself."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def exact_precision(like: Tensor) -> AbstractContextManager[object]:
    """Keep an enclosing autocast out of an operator's body: it would round the scores to bfloat16."""
    return torch.autocast(like.device.type, enabled=False)
