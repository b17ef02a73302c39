"""The operators as the checks call them, each in one place."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from attention_residuals.bench.gpu.formula import NORM_EPS
from attention_residuals.bench.problems import EPS
from attention_residuals.ops.gpu import OPERATORS, on_gpu


def mix(sources: Sequence[Tensor], folded: Tensor, gain: float, wide: bool) -> tuple[list[Tensor], Tensor, Tensor]:
    """R reads: mixtures, maxima and totals `[R, T]`."""
    return torch.ops.attention_residuals.mix(sources, folded, EPS, gain, wide)


def extend(
    local: Sequence[Tensor], folded: Tensor, part: Sequence[Tensor], norm: Tensor | None, gain: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One read gone on with: mixture, maximum, total, normed mixture."""
    dtype = local[0].dtype
    return torch.ops.attention_residuals.extend(local, None, folded, part, norm, EPS, NORM_EPS, gain, dtype)[:4]


def mix_backward(
    sources: Sequence[Tensor],
    running: Sequence[Tensor | None],
    folded: Tensor,
    grads: Sequence[Tensor],
    statistics: tuple[Sequence[Tensor], Sequence[Tensor]],
    deltas: Sequence[Tensor],
    gains: Sequence[float],
) -> tuple[list[Tensor], Tensor]:
    """Gradients of sources and folded queries; `statistics` are the maxima and totals of the reads."""
    maxima, totals = statistics
    grads_of_sources, sums, _ = torch.ops.attention_residuals.mix_backward(
        sources, running, folded, grads, maxima, totals, deltas, [], [], [], gains, EPS
    )
    return grads_of_sources, sums.sum(0)


def norm_backward(grad: Tensor, mixed: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradient of the mixture, its products with it, gradient of the weight."""
    return torch.ops.attention_residuals.norm_backward(grad, mixed, weight, NORM_EPS)


def row_products(grad: Tensor, mixed: Tensor) -> Tensor:
    """Inner products of rows."""
    return torch.ops.attention_residuals.row_products(grad, mixed)


@contextmanager
def kernels_on(device: str) -> Iterator[None]:
    """Within, the operators take the Triton kernels: on a GPU they do anyway, elsewhere they are put in their place."""
    space = torch.ops.attention_residuals
    plain = {} if device == "cuda" else {one.__name__: getattr(space, one.__name__) for one in OPERATORS}
    try:
        for one in OPERATORS if plain else ():
            setattr(space, one.__name__, on_gpu(one))
        yield
    finally:
        for name, operator in plain.items():
            setattr(space, name, operator)
