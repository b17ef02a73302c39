"""Inputs for a read, and the comparison of a result with the float64 oracle."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import attn_res, attn_res_reference, operators, plain_group
from attention_residuals.ops.native import load_native

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

PLAIN_OPERATORS = (
    operators.mix,
    operators.mix_halves,
    operators.extend,
    operators.extend_halves,
    operators.advance,
    operators.mix_backward,
    operators.norm_backward,
    operators.extend_halves_backward,
    operators.fold_rows,
    operators.row_products,
)

ROUNDINGS = 16
"""Roundings of the compute type a result of size 1 may be off by: a few a step, added up over up to 130 sources."""


@contextmanager
def plain_operators() -> Iterator[None]:
    """Within, reads take the plain implementations, whatever kernels stand in front of them."""
    with pytest.MonkeyPatch.context() as patch:
        for plain in PLAIN_OPERATORS:
            patch.setattr(torch.ops.attention_residuals, plain.__name__, plain)
        patch.setattr(plain_group, "ADVANCE", operators.advance)
        patch.setattr(plain_group, "FOLD_ROWS", operators.fold_rows)
        yield


@contextmanager
def compiled_operators() -> Iterator[None]:
    """Within, reads take the kernels; a test skips where there are none."""
    if not load_native():
        pytest.skip("the CPU kernels could not be compiled here, or are not wanted (ATTNRES_NATIVE=0)")
    yield


Kernels: TypeAlias = Callable[[], AbstractContextManager[None]]

KERNELS: dict[str, Kernels] = {"compiled": compiled_operators, "plain": plain_operators}

each_kernel = pytest.mark.parametrize("kernels", KERNELS.values(), ids=KERNELS.keys())

Read: TypeAlias = Callable[[list[Tensor], list[Tensor]], tuple[Tensor, Tensor | None]]
"""Sources and vectors (query, and key weight where there is one) to mixture and, if it has them, weights."""

Results: TypeAlias = tuple[Tensor, Tensor | None, list[Tensor]]
"""Mixture, weights, and gradients of leaves and vectors."""


def compute_type(dtype: torch.dtype) -> torch.dtype:
    """The type the read promises to compute in."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def signed(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Entries of size 0.5 to 1.5 and either sign: nothing is tiny, so errors can be stated relative to 1."""
    generator = torch.Generator().manual_seed(seed)
    size = 0.5 + torch.rand(*shape, generator=generator, dtype=torch.float64)
    sign = 2 * torch.randint(0, 2, tuple(shape), generator=generator) - 1
    return (size * sign).to(dtype)


def draw_sources(count: int, shape: Sequence[int], width: int, dtype: torch.dtype) -> list[Tensor]:
    """`count` sources `[*shape, width]`."""
    return [signed((*shape, width), dtype, seed=n) for n in range(count)]


def draw_vectors(width: int, dtype: torch.dtype) -> list[Tensor]:
    """A query that gives logits of size about 1, and a key weight."""
    return [signed((width,), dtype, seed=1001) / width**0.5, signed((width,), dtype, seed=1002)]


def assert_rounded_once(
    actual: Tensor, expected: Tensor, scale: float = 1.0, compute: torch.dtype | None = None
) -> None:
    """`actual` is the float64 `expected` up to one rounding to its type and `ROUNDINGS` of `compute` at `scale`.

    `compute` is the type the result was computed in; left out, the one that goes with the type of `actual`.
    """
    compute = compute or compute_type(actual.dtype)
    stored = torch.finfo(actual.dtype).eps / 2 if actual.dtype.itemsize < compute.itemsize else 0.0
    allowed = stored * expected.abs() + ROUNDINGS * torch.finfo(compute).eps * scale
    error = (actual.double() - expected).abs()
    assert actual.shape == expected.shape
    assert (error <= allowed).all(), f"off by {(error / allowed).max().item():.3g} times what is allowed"


def size(tensors: Sequence[Tensor]) -> float:
    """The largest absolute entry, and 1 where there is none or it is smaller."""
    return max([1.0, *(t.abs().max().item() for t in tensors if t.numel())])


def differentiate(
    read: Read, leaves: Sequence[Tensor], vectors: Sequence[Tensor], dtype: torch.dtype, *, through: str = "both"
) -> Results:
    """Mixture, weights, and the gradients of `leaves` and `vectors` for fixed gradients of size 1 of the results.

    `dtype` is the type the incoming gradients are drawn in, so that an oracle gets the very same numbers.
    """
    leaves = [leaf.detach().clone().requires_grad_() for leaf in leaves]
    vectors = [vector.detach().clone().requires_grad_() for vector in vectors]
    mixed, weights = read(leaves, vectors)
    chosen = []
    if through != "weights":
        chosen.append((mixed, signed(mixed.shape, dtype, seed=2001).to(mixed.dtype)))
    if through != "mixture":
        assert weights is not None
        chosen.append((weights, signed(weights.shape, compute_type(dtype), seed=2002).to(weights.dtype)))
    grads = torch.autograd.grad([result for result, _ in chosen], [*leaves, *vectors], [grad for _, grad in chosen])
    return mixed.detach(), None if weights is None else weights.detach(), list(grads)


def assert_read_equals_oracle(
    leaves: Sequence[Tensor],
    vectors: Sequence[Tensor],
    *,
    arrange: Callable[[list[Tensor]], list[Tensor]] = list,
    gain: float = 1.0,
    eps: float = 1e-6,
    through: str = "both",
) -> None:
    """Mixture, weights and every gradient of `attn_res` are those of the oracle, on every path.

    `arrange` makes the sources out of the leaves (views of them, the same one twice); gradients are of the leaves.
    """

    def weighted(leaves: list[Tensor], vectors: list[Tensor]) -> tuple[Tensor, Tensor]:
        return attn_res(arrange(leaves), *vectors, eps=eps, gain=gain, return_weights=True)

    def bare(leaves: list[Tensor], vectors: list[Tensor]) -> tuple[Tensor, None]:
        return attn_res(arrange(leaves), *vectors, eps=eps, gain=gain), None

    def oracle(leaves: list[Tensor], vectors: list[Tensor]) -> tuple[Tensor, Tensor]:
        mixed, weights = attn_res_reference(arrange(leaves), *vectors, eps=eps)
        return gain * mixed, weights

    doubles = [leaf.double() for leaf in leaves], [vector.double() for vector in vectors]

    def compare(read: Read, through: str) -> None:
        ours = differentiate(read, leaves, vectors, leaves[0].dtype, through=through)
        expected = differentiate(oracle, *doubles, leaves[0].dtype, through=through)
        assert_results_equal(ours, expected, leaves, vectors, gain)

    compare(weighted, through)
    if through != "weights":
        compare(bare, "mixture")
        with plain_operators():
            compare(bare, "mixture")


def assert_results_equal(
    ours: Results, theirs: Results, leaves: Sequence[Tensor], vectors: Sequence[Tensor], gain: float
) -> None:
    """What `differentiate` gives for a read of `leaves` and for the oracle, in the types a read promises."""
    (mixed, weights, grads), (expected_mixed, expected_weights, expected) = ours, theirs
    dtype = leaves[0].dtype
    assert mixed.dtype == dtype
    assert_rounded_once(mixed, expected_mixed, size([expected_mixed]))
    if weights is not None and expected_weights is not None:
        assert weights.dtype == compute_type(dtype)
        assert_rounded_once(weights, expected_weights)
    count = len(leaves)
    for grad, leaf, reference in zip(grads[:count], leaves, expected[:count], strict=True):
        assert grad.dtype == leaf.dtype
        assert_rounded_once(grad, reference, size(expected[:count]))
    # A gradient of a vector sums tokens times width products of size 1, whose rounding errors add up like a root.
    scale = abs(gain) * size(leaves) * max(1, mixed.numel()) ** 0.5
    for grad, vector, reference in zip(grads[count:], vectors, expected[count:], strict=True):
        assert grad.dtype == vector.dtype
        assert_rounded_once(grad, reference, max(scale, size([reference])), compute_type(dtype))
