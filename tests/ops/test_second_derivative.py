"""A second derivative through a read is refused with a clear error; it never comes out as zero."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import attn_res, attn_res_partial, normalise

from .groups import Open, eager, native
from .support import Kernels, draw_sources, draw_vectors, each_kernel

REFUSED = "differentiable once; a second derivative through it is not implemented"
REFUSED_BY_TORCH = "no autograd formula was registered"


def read(sources: list[Tensor], query: Tensor, key_weight: Tensor) -> Tensor:
    return attn_res(sources, query, key_weight)


def weighted_read(sources: list[Tensor], query: Tensor, key_weight: Tensor) -> Tensor:
    mixed, weights = attn_res(sources, query, key_weight, return_weights=True)
    return mixed.sum(-1) + weights.sum(0)


def partial_read(sources: list[Tensor], query: Tensor, key_weight: Tensor) -> Tensor:
    part = attn_res_partial(sources, query[None], key_weight[None])
    return normalise(part, sources[0].dtype)


def local_read(opened: Open) -> Callable[..., Tensor]:
    """A grouped read whose last source is local."""

    def read(sources: list[Tensor], query: Tensor, key_weight: Tensor) -> Tensor:
        group, local = opened(sources[:-1], query[None], key_weight[None]).publish(sources[-1])
        return group.read(0, (local,), 1.0)

    return read


def common_read(opened: Open) -> Callable[..., Tensor]:
    """A grouped read of common sources alone."""
    return lambda sources, query, key_weight: opened(sources, query[None], key_weight[None]).read(0, (), 1.0)


READS: dict[str, tuple[Callable[..., Tensor], str]] = {
    "read": (read, REFUSED),
    "weighted": (weighted_read, REFUSED_BY_TORCH),
    "partial": (partial_read, REFUSED_BY_TORCH),
    "local, native": (local_read(native), REFUSED),
    "local, eager": (local_read(eager), REFUSED),
    "common, native": (common_read(native), REFUSED),
    "common, eager": (common_read(eager), REFUSED),
}
COUNT = 3


def pairs() -> Iterator[tuple[int, int]]:
    """Which input the first derivative is taken of and which the second: sources, query, key weight."""
    inputs = range(COUNT + 2)
    return ((first, second) for first in inputs for second in inputs)


@pytest.mark.parametrize("name", READS)
@each_kernel
def test_every_pair_of_inputs(kernels: Kernels, name: str) -> None:
    function, message = READS[name]
    inputs = [*draw_sources(COUNT, (2,), 4, torch.float64), *draw_vectors(4, torch.float64)]
    with kernels():
        for first, second in pairs():
            leaves = [tensor.clone().requires_grad_(n in (first, second)) for n, tensor in enumerate(inputs)]
            loss = function(leaves[:COUNT], *leaves[COUNT:]).sum()
            (grad,) = torch.autograd.grad(loss, leaves[first], create_graph=True)
            with pytest.raises(RuntimeError, match=message):
                torch.autograd.grad(grad.sum(), leaves[second])


@pytest.mark.parametrize("name", READS)
def test_a_penalty_on_a_gradient(name: str) -> None:
    """As it would be written: the first derivative is one summand of a loss."""
    function, message = READS[name]
    leaves = [source.requires_grad_() for source in draw_sources(COUNT, (2,), 4, torch.float64)]
    loss = function(leaves, *draw_vectors(4, torch.float64)).square().sum()
    (grad,) = torch.autograd.grad(loss, leaves[0], create_graph=True)
    with pytest.raises(RuntimeError, match=message):
        (loss + grad.square().sum()).backward()


@pytest.mark.parametrize("name", READS)
def test_a_second_derivative_elsewhere_is_exact(name: str) -> None:
    """What follows a read may be differentiated twice: only paths through the read itself are refused."""
    function, _ = READS[name]
    leaves = [source.requires_grad_() for source in draw_sources(COUNT, (2,), 4, torch.float64)]
    mixed = function(leaves, *draw_vectors(4, torch.float64))
    factor = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    (grad,) = torch.autograd.grad((factor.square() * mixed).sum(), factor, create_graph=True)
    assert torch.equal(torch.autograd.grad(grad, factor, retain_graph=True)[0], 2 * mixed.detach().sum())
    expected = torch.autograd.grad(2 * factor.detach() * mixed.sum(), leaves, retain_graph=True)
    for ours, theirs in zip(torch.autograd.grad(grad, leaves), expected, strict=True):
        assert torch.equal(ours, theirs)
