"""What is computed in a benchmark of reads, apart from how: inputs, incoming gradients, and the float64 oracle."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

EPS = 1e-6

Computation: TypeAlias = Callable[[list[Tensor], list[Tensor]], list[Tensor]]
"""Leaves `[T, D]` and vectors to outputs `[T, D]`."""

ALLOWED_ERROR = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 2.0**-5, torch.float16: 2.0**-8}
"""By the type of the sources: the most a result may be off by, relative to its largest entry."""

ORACLE_BYTES = 2**30
"""About what the oracle may hold at once; it takes the tokens in pieces."""

COPIES_OF_ORACLE = 8
"""Tensors of a source's size that plain autograd holds for each source of a read."""


@dataclass(frozen=True, eq=False)
class Problem:
    """Inputs of one benchmark.

    Args:
        leaves: tensors `[T, D]` to differentiate by.
        vectors: queries and key weights to differentiate by; their gradients sum over the tokens.
        incoming: the gradient `[T, D]` of each output.
        oracle: the outputs by the paper's formula.
        source_reads: sources of all reads together, which is what the oracle's memory goes by.
    """

    leaves: list[Tensor]
    vectors: list[Tensor]
    incoming: list[Tensor]
    oracle: Computation
    source_reads: int

    @property
    def dtype(self) -> torch.dtype:
        """Type of the sources."""
        return self.leaves[0].dtype

    @property
    def unit_bytes(self) -> int:
        """U: bytes of one tensor `[T, D]`."""
        return self.leaves[0].nbytes

    def name(self, n: int) -> str:
        """What the `n`-th result is."""
        outputs, leaves = len(self.incoming), len(self.leaves)
        if n < outputs:
            return f"output {n}"
        if n < outputs + leaves:
            return f"the gradient of input {n - outputs}"
        return f"the gradient of vector {n - outputs - leaves}"


@dataclass(frozen=True)
class Verdict:
    """Whether an implementation is right, with the largest relative error, and in words if it is wrong."""

    right: bool
    error: float | None
    words: str


def draw(shape: Sequence[int], dtype: torch.dtype, seed: int, scale: float = 1.0) -> Tensor:
    """Normal numbers of standard deviation `scale`."""
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def draw_leaves(count: int, tokens: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """`count` inputs `[tokens, width]` to differentiate by."""
    return [draw((tokens, width), dtype, seed=n).requires_grad_() for n in range(count)]


def draw_incoming(count: int, tokens: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """Gradients of `count` outputs."""
    return [draw((tokens, width), dtype, seed=10_000 + n) for n in range(count)]


def draw_vectors(count: int, width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """`count` queries that give logits of size 1, and key weights around 1, `[count, width]`."""
    queries = draw((count, width), dtype, seed=20_000, scale=width**-0.5)
    key_weights = 1 + draw((count, width), dtype, seed=20_001, scale=0.1)
    return queries.requires_grad_(), key_weights.requires_grad_()


def differentiate(computation: Computation, problem: Problem) -> list[Tensor | None]:
    """Outputs, then the gradients of all leaves and vectors."""
    inputs = [*problem.leaves, *problem.vectors]
    outputs = computation(problem.leaves, problem.vectors)
    return [*outputs, *torch.autograd.grad(outputs, inputs, problem.incoming, allow_unused=True)]


def expected_results(problem: Problem) -> list[Tensor]:
    """What `differentiate` has to give, in float64 by plain autograd, some tokens at a time."""
    tokens, width = problem.leaves[0].shape
    piece = max(1, ORACLE_BYTES // (8 * width * COPIES_OF_ORACLE * problem.source_reads))
    vectors = [vector.detach().double().requires_grad_() for vector in problem.vectors]
    by_token: list[list[Tensor]] = []
    for begin in range(0, tokens, piece):
        part = slice(begin, begin + piece)
        leaves = [leaf.detach()[part].double().requires_grad_() for leaf in problem.leaves]
        outputs = problem.oracle(leaves, vectors)
        # Gradients of the vectors add up over the pieces in `.grad`.
        torch.autograd.backward(outputs, [grad[part].double() for grad in problem.incoming])
        by_token.append([*(output.detach() for output in outputs), *(_gradient(leaf) for leaf in leaves)])
    return [*(torch.cat(pieces) for pieces in zip(*by_token, strict=True)), *(_gradient(one) for one in vectors)]


def judge(computation: Computation, problem: Problem, expected: Sequence[Tensor]) -> Verdict:
    """Compare every output and gradient of an implementation with the oracle's."""
    allowed, worst = ALLOWED_ERROR[problem.dtype], 0.0
    for n, (found, wanted) in enumerate(zip(differentiate(computation, problem), expected, strict=True)):
        if found is None:
            return Verdict(False, None, f"wrong: {problem.name(n)} is missing")
        if found.shape != wanted.shape:
            return Verdict(False, None, f"wrong: {problem.name(n)} has shape {tuple(found.shape)}")
        error = ((found.double() - wanted).abs().max() / wanted.abs().max()).item()
        if not error <= allowed:  # so that nan is wrong too
            return Verdict(False, error, f"wrong: {problem.name(n)} is off by {error:.1e}, allowed are {allowed:.0e}")
        worst = max(worst, error)
    return Verdict(True, worst, f"right to {worst:.0e}")


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
