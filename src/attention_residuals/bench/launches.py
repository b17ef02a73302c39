"""Launches of the Triton kernels, taken where `ops/gpu/launch.py` makes them, and programs that lead to all of them.

No GPU is needed: the tensors are on the CPU, and whoever takes a launch decides what becomes of it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attention_residuals.bench.problems import EPS, draw, draw_incoming, draw_leaves, draw_vectors
from attention_residuals.ops import Ahead, Group, PreNorm, attn_res, attn_res_partial
from attention_residuals.ops.checks import fold
from attention_residuals.ops.gpu import OPERATORS, launch, on_gpu
from attention_residuals.ops.group import EagerGroup


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch: name of a kernel, numbers of programs, arguments, and keywords with Triton's options among them."""

    kernel: str
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class _Taken:
    """Stands where the module of kernels does."""

    def __init__(self, take: Callable[[Launch], None]):
        self._take = take

    def __getattr__(self, kernel: str) -> "_Kernel":
        return _Kernel(kernel, self._take)


class _Kernel:
    def __init__(self, name: str, take: Callable[[Launch], None]):
        self._name, self._take = name, take

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        return lambda *arguments, **keywords: self._take(Launch(self._name, grid, arguments, keywords))


@contextmanager
def taken(take: Callable[[Launch], None]) -> Iterator[None]:
    """Within, the operators are those for a GPU, whatever the device, and `take` gets their launches."""
    namespace, kernels = torch.ops.attention_residuals, launch.kernels
    plain = {one.__name__: getattr(namespace, one.__name__) for one in OPERATORS}
    setattr(launch, "kernels", _Taken(take))  # noqa: B010
    for operator in OPERATORS:
        setattr(namespace, operator.__name__, on_gpu(operator))
    try:
        yield
    finally:
        setattr(launch, "kernels", kernels)  # noqa: B010
        for name, operator in plain.items():
            setattr(namespace, name, operator)


Pass = Callable[[], Callable[[], object]]
"""Runs a forward, and gives what runs its backward."""


def read_pass(sources: int, tokens: int, width: int, dtype: torch.dtype) -> Pass:
    """One read over `sources`, and the gradients of all its inputs."""
    leaves, incoming = draw_leaves(sources, tokens, width, dtype), draw_incoming(1, tokens, width, dtype)
    queries, key_weights = draw_vectors(1, width, dtype)

    def forward() -> Callable[[], object]:
        mixture = attn_res(leaves, queries[0], key_weights[0], eps=EPS)
        return lambda: torch.autograd.grad(mixture, [*leaves, queries, key_weights], incoming)

    return forward


def partial_pass(sources: int, reads: int, tokens: int, width: int, dtype: torch.dtype) -> Pass:
    """The unfinished `reads` of code that a compiler traces."""
    leaves = draw_leaves(sources, tokens, width, dtype)
    queries, key_weights = draw_vectors(reads, width, dtype)

    def forward() -> Callable[[], object]:
        values = attn_res_partial(leaves, queries, key_weights, eps=EPS).values
        return lambda: torch.autograd.grad(values.sum(), [*leaves, queries, key_weights])

    return forward


def block_pass(sources: int, reads: int, tokens: int, width: int, dtype: torch.dtype, normed: bool) -> Pass:
    """A block of `reads` over `sources` closed ones in two phases, in the midst of a network.

    The closed sources and the last partial sum have gradients from elsewhere too, as in `reads.block_problem`.
    """
    leaves = draw_leaves(sources + reads - 1, tokens, width, dtype)
    incoming = draw_incoming(reads + sources + 1, tokens, width, dtype)
    queries, key_weights = draw_vectors(reads, width, dtype)
    weights = [draw((width,), torch.float32, seed=30_000 + n).requires_grad_() for n in range(reads if normed else 0)]
    norms = [PreNorm(weight, EPS) for weight in weights] if normed else [None] * reads

    def forward() -> Callable[[], object]:
        outputs = _block(leaves[:sources], leaves[sources:], fold(queries, key_weights, dtype), norms)
        return lambda: torch.autograd.grad(outputs, [*leaves, queries, key_weights, *weights], incoming)

    return forward


def full_pass(sources: int, reads: int, tokens: int, width: int, dtype: torch.dtype) -> Pass:
    """A group of Full: `reads` over `sources` common ones and one more local source each."""
    leaves = draw_leaves(sources + reads - 1, tokens, width, dtype)
    incoming = draw_incoming(reads, tokens, width, dtype)
    queries, key_weights = draw_vectors(reads, width, dtype)

    def forward() -> Callable[[], object]:
        group: Group = EagerGroup(leaves[:sources], fold(queries, key_weights, dtype), EPS)
        read, local = [group.read(0, (), 1.0)], []
        for n, output in enumerate(leaves[sources:], 1):
            group, source = group.publish(output)
            local.append(source)
            read.append(group.read(n, local, 1.0))
        return lambda: torch.autograd.grad(read, [*leaves, queries, key_weights], incoming)

    return forward


def _block(
    common: Sequence[Tensor], made: Sequence[Tensor], folded: Tensor, norms: Sequence[PreNorm | None]
) -> list[Tensor]:
    """What all reads give, then the closed sources and the last partial sum."""
    opened = EagerGroup(common, folded, EPS)
    group, partial_sum = opened, None
    read = [group.read(0, (), 1.0, norms[0])]
    for n, output in enumerate(made, 1):
        group, partial_sum = group.publish(output, partial_sum, Ahead(n, 1.0, norms[n]))
        read.append(group.read(n, (partial_sum,), 1.0, norms[n]))
    assert partial_sum is not None, "a block of one read has no partial sum"
    return [*read, *opened.common, partial_sum]
