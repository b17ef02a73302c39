"""The read in parts: any split of the sources and any order of merging gives what `attn_res` gives in one go."""

from collections.abc import Callable
from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attention_residuals.ops import attn_res, attn_res_partial, attn_res_reference, merge, normalise

from .support import DTYPES, assert_rounded_once, compute_type, draw_sources, signed, size

QUERIES, WIDTH = 3, 8


def draw_matrices(dtype: torch.dtype, width: int = WIDTH) -> tuple[Tensor, Tensor]:
    """Queries `[R, D]` that give logits of size about 1, and key weights `[R, D]`."""
    return signed((QUERIES, width), dtype, seed=1001) / width**0.5, signed((QUERIES, width), dtype, seed=1002)


def read_in_parts(
    groups: list[list[Tensor]], queries: Tensor, key_weights: Tensor, dtype: torch.dtype, gain: float = 1.0
) -> Tensor:
    """The mixtures `[R, ..., D]` of all groups, merged from the first to the last."""
    parts = [attn_res_partial(group, queries, key_weights) for group in groups]
    return normalise(reduce(merge, parts), dtype, gain=gain)


def read_each(sources: list[Tensor], queries: Tensor, key_weights: Tensor, gain: float = 1.0) -> Tensor:
    """The mixtures `[R, ..., D]`, one `attn_res` a query."""
    return torch.stack([attn_res(sources, q, g, gain=gain) for q, g in zip(queries, key_weights, strict=True)])


def oracle_each(sources: list[Tensor], queries: Tensor, key_weights: Tensor) -> Tensor:
    """The mixtures `[R, ..., D]` in float64."""
    return torch.stack([attn_res_reference(sources, q, g)[0] for q, g in zip(queries, key_weights, strict=True)])


@st.composite
def groupings(draw: st.DrawFn) -> list[list[int]]:
    """Source numbers 0..N-1 in any order, cut into non-empty groups."""
    order = draw(st.permutations(range(draw(st.integers(1, 9)))))
    cuts = sorted(draw(st.sets(st.integers(1, len(order) - 1)))) if len(order) > 1 else []
    return [list(order[a:b]) for a, b in zip([0, *cuts], [*cuts, len(order)], strict=True)]


@settings(deadline=None, max_examples=50)
@given(grouping=groupings(), data=st.data(), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_any_split_and_any_order_of_merging(grouping: list[list[int]], data: st.DataObject, dtype: torch.dtype) -> None:
    sources = draw_sources(sum(map(len, grouping)), (2, 3), WIDTH, dtype)
    queries, key_weights = draw_matrices(dtype)
    parts = [attn_res_partial([sources[n] for n in group], queries, key_weights) for group in grouping]
    while len(parts) > 1:
        first = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        second = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        parts.append(merge(first, second))
    assert_rounded_once(normalise(parts[0], dtype), read_each(sources, queries, key_weights).double(), 1.5)


@settings(deadline=None, max_examples=30)
@given(grouping=groupings(), dtype=st.sampled_from([torch.float64, torch.float32]))
def test_gradients_of_any_split(grouping: list[list[int]], dtype: torch.dtype) -> None:
    count = sum(map(len, grouping))
    inputs = [*draw_sources(count, (2, 3), WIDTH, dtype), *draw_matrices(dtype)]

    def in_parts(*inputs: Tensor) -> Tensor:
        groups = [[inputs[n] for n in group] for group in grouping]
        return read_in_parts(groups, inputs[-2], inputs[-1], dtype, gain=2.0)

    def at_once(*inputs: Tensor) -> Tensor:
        return read_each(list(inputs[:count]), inputs[-2], inputs[-1], gain=2.0)

    scale = (2 * 3 * WIDTH) ** 0.5
    for ours, whole in zip(gradients(in_parts, inputs), gradients(at_once, inputs), strict=True):
        assert_rounded_once(ours, whole.double(), max(scale, size([whole])))


def gradients(read: Callable[..., Tensor], inputs: list[Tensor]) -> tuple[Tensor, ...]:
    """Gradients of every input for a fixed gradient of size 1 of the result."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    mixed = read(*leaves)
    return torch.autograd.grad(mixed, leaves, signed(mixed.shape, inputs[0].dtype, seed=2001).to(mixed.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (4,), (2, 1, 3), (0,)])
def test_mixtures_are_rounded_once(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    sources = draw_sources(9, shape, 64, dtype)
    queries, key_weights = draw_matrices(torch.float32 if dtype != torch.float64 else dtype, 64)
    groups = [sources[:4], sources[4:5], sources[5:]]
    mixed = read_in_parts(groups, queries, key_weights, dtype)
    assert mixed.dtype == dtype
    assert_rounded_once(mixed, oracle_each(sources, queries, key_weights))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_in_low_precision_equal_the_oracle(dtype: torch.dtype) -> None:
    # Vectors in float32: autograd adds up their gradients from each part, in the type of the vector.
    inputs = [*draw_sources(5, (2, 3), 64, dtype), *draw_matrices(torch.float32, 64)]

    def in_parts(*inputs: Tensor) -> Tensor:
        return read_in_parts([list(inputs[:3]), list(inputs[3:5])], inputs[-2], inputs[-1], dtype)

    def oracle(*inputs: Tensor) -> Tensor:
        return oracle_each(list(inputs[:5]), inputs[-2], inputs[-1])

    leaves = [tensor.double().requires_grad_() for tensor in inputs]
    mixed = oracle(*leaves)
    expected = torch.autograd.grad(mixed, leaves, signed(mixed.shape, dtype, seed=2001).double())
    for grad, tensor, reference in zip(gradients(in_parts, inputs), inputs, expected, strict=True):
        assert grad.dtype == tensor.dtype
        assert_rounded_once(grad, reference, (2 * 3 * 64) ** 0.5, torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_part_is_kept_in_the_compute_type(dtype: torch.dtype) -> None:
    sources = [source.requires_grad_() for source in draw_sources(3, (2, 5), WIDTH, dtype)]
    part = attn_res_partial(sources, *draw_matrices(dtype))
    assert {tensor.dtype for tensor in part} == {compute_type(dtype)}
    assert [tuple(tensor.shape) for tensor in part] == [(QUERIES, 2, 5, WIDTH), (QUERIES, 2, 5), (QUERIES, 2, 5)]
    assert [tensor.requires_grad for tensor in part] == [True, False, True]


@pytest.mark.parametrize("r", range(QUERIES))
def test_one_query_of_a_part(r: int) -> None:
    sources = draw_sources(3, (2,), WIDTH, torch.float64)
    queries, key_weights = draw_matrices(torch.float64)
    several = attn_res_partial(sources, queries, key_weights).query(r)
    alone = attn_res_partial(sources, queries[r : r + 1], key_weights[r : r + 1])
    for ours, expected in zip(several, alone, strict=True):
        assert_rounded_once(ours, expected, size([expected]))


def test_no_key_weights_means_ones() -> None:
    sources = draw_sources(3, (2,), WIDTH, torch.float64)
    queries, _ = draw_matrices(torch.float64)
    bare, ones = attn_res_partial(sources, queries), attn_res_partial(sources, queries, torch.ones_like(queries))
    for ours, expected in zip(bare, ones, strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_parts_with_logits_far_apart(dtype: torch.dtype) -> None:
    inputs = [*draw_sources(4, (3,), 64, dtype), *draw_matrices(dtype, 64)]
    inputs[-2] = 1e4 * inputs[-2]

    def in_parts(*inputs: Tensor) -> Tensor:
        return read_in_parts([[source] for source in inputs[:4]], inputs[-2], inputs[-1], dtype)

    mixed = in_parts(*inputs)
    assert_rounded_once(mixed, oracle_each(inputs[:4], inputs[-2], inputs[-1]), 1.5)
    assert all(grad.isfinite().all() for grad in gradients(in_parts, inputs))


def test_a_part_without_a_gradient_of_its_total() -> None:
    """The backward of the operator takes absent gradients as zero."""
    sources = [source.requires_grad_() for source in draw_sources(3, (2,), WIDTH, torch.float64)]
    part = attn_res_partial(sources, *draw_matrices(torch.float64))
    apart = [torch.autograd.grad(t.sum(), sources, retain_graph=True) for t in (part.values, part.total)]
    joint = torch.autograd.grad(part.values.sum() + part.total.sum(), sources)
    for values, total, both in zip(*apart, joint, strict=True):
        assert_rounded_once(values + total, both, size([values, total]))


@pytest.mark.parametrize("counts", [(1, 1), (2, 1), (1, 2, 1)])
def test_gradcheck_of_the_composition(counts: tuple[int, ...]) -> None:
    inputs = [*draw_sources(sum(counts), (2,), 3, torch.float64), *draw_matrices(torch.float64, 3)]

    def in_parts(*inputs: Tensor) -> Tensor:
        sources = iter(inputs)
        groups = [[next(sources) for _ in range(count)] for count in counts]
        return read_in_parts(groups, inputs[-2], inputs[-1], torch.float64, gain=1.5)

    assert torch.autograd.gradcheck(in_parts, [tensor.requires_grad_() for tensor in inputs])
