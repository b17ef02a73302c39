"""The operator `mix_backward`, kernels and plain, against the float64 oracle."""

from dataclasses import replace

import pytest
import torch

from .reads import assert_gradients, draw_reads, with_running
from .support import DTYPES, KERNELS, Kernels, each_kernel
from .test_mix import COUNTS, QUERIES, WIDTHS


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("queries", QUERIES)
def test_every_number_of_queries_and_sources(queries: int, width: int, dtype: torch.dtype) -> None:
    most = draw_reads(max(COUNTS), queries, width, dtype)
    for count in COUNTS if queries * width <= 4096 else COUNTS[::2]:
        reads = most.first(count)
        for kernels in KERNELS.values():
            with kernels():
                assert_gradients(reads.mix_backward(with_deltas=False), reads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@each_kernel
def test_some_of_the_sources(kernels: Kernels, width: int, dtype: torch.dtype) -> None:
    """What is known of the others is the statistics of the reads and their deltas."""
    for count, others, queries in [(1, 1, 1), (3, 1, 2), (1, 32, 8), (5, 0, 3)]:
        reads = with_running(draw_reads(count, queries, width, dtype, others=others, shape=(2, 3)))
        with kernels():
            assert_gradients(reads.mix_backward(with_deltas=True), reads)
            assert_gradients(reads.mix_backward(with_deltas=True, from_mixtures=True), reads)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("queries", [1, 3])
@each_kernel
def test_gradients_from_elsewhere_are_added_before_the_one_rounding(
    kernels: Kernels, queries: int, dtype: torch.dtype
) -> None:
    for count in (1, 4, 7):
        reads = with_running(draw_reads(count, queries, 33, dtype))
        with kernels():
            assert_gradients(reads.mix_backward(with_deltas=False), reads)
            nothing = replace(reads, running=[None] * count)
            assert_gradients(nothing.mix_backward(with_deltas=False), nothing)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [2, 130, 256])
@each_kernel
def test_many_tokens_and_many_sources(kernels: Kernels, count: int, dtype: torch.dtype) -> None:
    """Enough tokens for chunks of several, the last one shorter, and batches within a chunk."""
    reads = with_running(draw_reads(count, 3, 33, dtype, shape=(5, 13) if count > 2 else (7, 131)))
    with kernels():
        assert_gradients(reads.mix_backward(with_deltas=False), reads)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gradients_too_large_for_the_caches(dtype: torch.dtype) -> None:
    """Beyond a few megabytes the kernels write past the caches."""
    reads = with_running(draw_reads(5, 2, 64, dtype, shape=(7000,)))
    assert sum(source.numel() * source.itemsize for source in reads.own) > 8 << 20
    assert_gradients(reads.mix_backward(with_deltas=True), reads)


@pytest.mark.parametrize("gain", [1.0, 3.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@each_kernel
def test_one_source_gives_its_query_exactly_nothing(
    kernels: Kernels, width: int, dtype: torch.dtype, gain: float
) -> None:
    reads = replace(draw_reads(1, 1, width, dtype), gains=[gain])
    with kernels():
        (grad,), grad_folded = reads.mix_backward(with_deltas=False)
    assert torch.equal(grad_folded, torch.zeros_like(grad_folded))
    assert torch.equal(grad, gain * reads.grads[0])
