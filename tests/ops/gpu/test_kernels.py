"""Every kernel against the float64 oracle: numbers of sources, queries and tokens, widths, types, layouts."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from ..groups import DirectGroup, Program, draw_inputs, each_program, eager, gradients, loss_of
from ..in_halves import check_mix_halves, check_range_of_halves
from ..test_layouts import LAYOUTS
from .checks import (
    check_added,
    check_backward,
    check_extend,
    check_far_apart,
    check_halves,
    check_mix,
    check_norm,
    check_products,
    check_zeros,
    draw,
)
from .support import DEVICE, DTYPES, triton_operators

each_type = pytest.mark.parametrize("dtype", DTYPES, ids=str)
WIDTHS = (3, 33, 64, 1000)


@pytest.fixture(autouse=True)
def operators() -> Iterator[None]:
    with triton_operators():
        yield


@each_type
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("count", "queries"), [(1, 1), (2, 3), (9, 1), (5, 8), (17, 2)])
def test_mix(count: int, queries: int, width: int, dtype: torch.dtype) -> None:
    check_mix(count, queries, (2, 3), width, dtype)


@each_type
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("count", "queries"), [(1, 1), (2, 3), (9, 1), (5, 8)])
def test_backward(count: int, queries: int, width: int, dtype: torch.dtype) -> None:
    check_backward(count, queries, (2, 3), width, dtype)


@each_type
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_extend(count: int, width: int, dtype: torch.dtype) -> None:
    check_extend(count, (2, 3), width, dtype)
    if count == 1:
        check_added((2, 3), width, dtype)


@each_type
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("tokens", [1, 70])
def test_norm_and_products(tokens: int, width: int, dtype: torch.dtype) -> None:
    check_norm((tokens,), width, dtype)
    check_products((tokens,), width, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [33, 64])
def test_parts_in_halves(width: int, dtype: torch.dtype) -> None:
    check_halves((2, 3), width, dtype)
    check_range_of_halves(dtype, DEVICE)


@each_type
def test_130_sources_and_24_queries(dtype: torch.dtype) -> None:
    check_mix(130, 1, (3,), 64, dtype)
    check_backward(130, 1, (3,), 64, dtype)
    check_mix(3, 24, (3,), 64, dtype)
    check_backward(3, 24, (3,), 64, dtype)


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 131])
def test_tokens_that_fill_programs_or_do_not(tokens: int) -> None:
    check_mix(2, 2, (tokens,), 64, torch.float32)
    check_backward(2, 2, (tokens,), 64, torch.float32)
    check_backward(2, 1, (tokens,), 64, torch.float32)


@each_type
@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("width", [1025, 1500, 4096])
def test_few_tokens_in_slices(width: int, tokens: int, dtype: torch.dtype) -> None:
    check_mix(9, 2, (tokens,), width, dtype)
    if dtype != torch.float32:
        check_mix_halves(3, 2, (tokens,), width, dtype, DEVICE)


def test_widths_that_take_two_queries_at_once() -> None:
    """Four of them would not fit the registers of a program."""
    check_mix(1, 3, (65,), 4100, torch.float32)
    check_backward(1, 3, (3,), 4100, torch.float32)


@each_type
def test_hard_numbers(dtype: torch.dtype) -> None:
    check_far_apart(dtype)
    check_zeros(dtype)


def results(sources: list[Tensor], reads) -> list[Tensor]:
    ops = torch.ops.attention_residuals
    mixed, maximum, total = ops.mix(sources, reads.folded, 1e-6, 1.0, False)
    grads, sums, _ = ops.mix_backward(
        sources, sources, reads.folded, reads.grads, list(maximum), list(total), [], [], [], [], reads.gains, 1e-6
    )
    values, *statistics = ops.mix(sources, reads.folded[:1], 1e-6, 1.0, True)
    extended = ops.extend(
        sources, None, reads.folded[:1], [*values, *statistics], None, 1e-6, 0.0, 1.0, sources[0].dtype
    )
    norm = ops.norm_backward(sources[0], mixed[0].float(), reads.folded[0], 1e-6)
    return [*mixed, maximum, total, *grads, sums, *extended, *norm]


@pytest.mark.parametrize("layout", [*LAYOUTS.values(), "three levels"], ids=[*LAYOUTS, "three levels"])
def test_any_layout_gives_the_same_bits(layout: Callable[[Tensor], Tensor] | str) -> None:
    """Also one that two strides cannot tell, and is copied."""
    reads = draw(3, 2, 16, torch.float32, shape=(6, 5) if callable(layout) else (2, 3, 4))
    expected = results([source.clone() for source in reads.own], reads)
    laid = [
        layout(v) if callable(layout) else v.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3) for v in reads.own
    ]
    for one, reference in zip(results(laid, reads), expected, strict=True):
        assert torch.equal(one, reference)


def test_sources_that_share_memory() -> None:
    reads = draw(1, 2, 16, torch.float32, shape=(9,))
    source = reads.own[0]
    for one, reference in zip(
        results([source, source, source[:]], reads), results([source.clone() for _ in range(3)], reads), strict=True
    ):
        assert torch.equal(one, reference)


def test_the_same_bits_every_time() -> None:
    reads = draw(3, 5, 64, torch.float32, shape=(70,))
    expected = results(reads.own, reads)
    for _ in range(2):
        for one, reference in zip(results(reads.own, reads), expected, strict=True):
            assert torch.equal(one, reference)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_program
def test_groups_of_reads(program: Program, dtype: torch.dtype) -> None:
    """All of a block, of Full and of whatever else a group may be asked for, with every gradient."""
    inputs = [tensor.detach().to(DEVICE).requires_grad_() for tensor in draw_inputs(dtype)]
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    ours, expected = program(eager, inputs), program(DirectGroup, exact)
    allowed = 64 * torch.finfo(dtype).eps
    for one, reference in zip(ours, expected, strict=True):
        assert (one - reference).abs().max() <= allowed * reference.abs().max()
    pairs = zip(gradients(loss_of(ours), inputs), gradients(loss_of(expected), exact), strict=True)
    for grad, reference in pairs:
        if grad is None or reference is None:
            assert reference is None or not reference.any()
        else:
            assert (grad - reference).abs().max() <= allowed * max(1.0, reference.abs().max().item())
