"""The operator `mix`, kernels and plain, against the float64 oracle."""

import pytest
import torch

from .reads import EPS, OPS, assert_mixtures, assert_statistics, draw_reads
from .support import DTYPES, KERNELS, Kernels, assert_rounded_once, each_kernel, size

COUNTS = (1, 2, 5, 31)
QUERIES = (1, 2, 3, 5, 8, 24)
WIDTHS = (1, 3, 16, 33, 64, 512, 1000)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("queries", QUERIES)
def test_every_number_of_queries_and_sources(queries: int, width: int, dtype: torch.dtype) -> None:
    most = draw_reads(max(COUNTS), queries, width, dtype)
    for count in COUNTS if queries * width <= 4096 else COUNTS[::2]:
        reads = most.first(count)
        for kernels in KERNELS.values():
            with kernels():
                mixed, maximum, total = reads.mix(wide=False)
                wide, *statistics = reads.mix(wide=True)
            assert {one.dtype for one in mixed} == {dtype}
            assert {one.dtype for one in wide} == {reads.compute}
            assert_mixtures(mixed, reads)
            assert_mixtures(wide, reads)
            assert_statistics(maximum, total, reads)
            assert torch.equal(maximum, statistics[0]) and torch.equal(total, statistics[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@each_kernel
def test_going_on_from_a_part(kernels: Kernels, width: int, dtype: torch.dtype) -> None:
    for count, others in [(1, 1), (1, 5), (5, 1), (33, 32)]:
        reads = draw_reads(count, 1, width, dtype, others=others, shape=(2, 3))
        with kernels():
            values, *statistics = OPS.mix(reads.others, reads.folded, EPS, 1.0, True)
            part = [*values, *statistics]
            mixed, maximum, total, normed, source = OPS.extend(
                reads.own, None, reads.folded, part, None, EPS, 0.0, -0.5, dtype
            )
        assert mixed.dtype == reads.compute
        for absent in (normed, source):
            assert absent.shape == (0,) and absent.dtype == dtype
        assert_mixtures([mixed], reads, gain=-0.5)
        assert_statistics(maximum, total, reads)


@pytest.mark.parametrize("dtype", DTYPES)
@each_kernel
def test_a_part_far_above_or_below(kernels: Kernels, dtype: torch.dtype) -> None:
    """Logits of a part that differ by 1e4 from those of the sources: one of both has no weight at all."""
    reads = draw_reads(1, 1, 64, dtype, others=1)
    query = 1e4 * reads.own[0][0].to(reads.compute) / 64
    for own, part in [(reads.own, [-reads.own[0]]), ([-reads.own[0]], reads.own)]:
        with kernels():
            values, *statistics = OPS.mix(part, query[None], EPS, 1.0, True)
            mixed, *_ = OPS.extend(own, None, query[None], [*values, *statistics], None, EPS, 0.0, 1.0, dtype)
        assert torch.equal(mixed[0], reads.own[0][0].to(mixed.dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [2, 130, 256])
@each_kernel
def test_many_tokens_and_many_sources(kernels: Kernels, count: int, dtype: torch.dtype) -> None:
    """Enough tokens for chunks of several, the last one shorter, and batches within a chunk."""
    reads = draw_reads(count, 3, 33, dtype, shape=(5, 13) if count > 2 else (7, 131))
    with kernels():
        mixed, maximum, total = reads.mix(wide=False)
    assert_mixtures(mixed, reads)
    assert_statistics(maximum, total, reads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@each_kernel
def test_row_products(kernels: Kernels, width: int, dtype: torch.dtype) -> None:
    reads = draw_reads(1, 1, width, dtype, shape=(5, 2))
    grad, mixed = reads.grads[0], reads.own[0].to(reads.compute)
    with kernels():
        products = OPS.row_products(grad, mixed)
    expected = (grad.double() * mixed.double()).sum(-1).flatten()
    # A sum of `width` products of size 1, whose roundings add up like a root.
    assert_rounded_once(products, expected, max(size([expected]), width**0.5))


@each_kernel
def test_a_product_of_two_layouts(kernels: Kernels) -> None:
    grad, mixed = draw_reads(2, 1, 6, torch.float64, shape=(4, 3)).own
    expected = (grad * mixed).sum(-1).T.flatten()
    with kernels():
        products = OPS.row_products(grad.transpose(0, 1), mixed.transpose(0, 1))
        one = OPS.row_products(grad[:1, :1].expand(4, 3, 6), mixed)
    assert_rounded_once(products, expected, size([expected]))
    expected = (grad[0, 0] * mixed).sum(-1).flatten()
    assert_rounded_once(one, expected, size([expected]))
