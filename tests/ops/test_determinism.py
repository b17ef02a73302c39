"""The same bits on every run, for any number of threads and for a token in any batch: the kernels promise all three."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import attn_res

from .reads import EPS, OPS, Reads, draw_reads, with_running
from .support import compiled_operators, draw_vectors, signed

TYPES = [torch.float32, torch.bfloat16]
CUTS = [1, 31, 33, 300, 5000]


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    with compiled_operators():
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within, torch works on `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def results(reads: Reads) -> list[Tensor]:
    """All that the operators answer; what sums over tokens is last."""
    mixed, maximum, total = reads.mix()
    grads, grad_folded = reads.mix_backward(with_deltas=True)
    one = replace(reads, own=reads.own[:2], others=reads.own[2:], folded=reads.folded[:1])
    weight = reads.folded[1]
    normed = one.normed(weight, EPS)
    grad_mixed, products, grad_weight = OPS.norm_backward(reads.grads[0], normed[0], weight, EPS)
    per_token = [*mixed, maximum, total, *grads, *reads.mix_backward(with_deltas=False)[0]]
    return [*per_token, *normed, grad_mixed, products[None], grad_weight, grad_folded]


def read_and_gradients(sources: list[Tensor], incoming: Tensor, vectors: list[Tensor]) -> list[Tensor]:
    """Mixture and gradients of `attn_res`: of the sources, then of the vectors."""
    inputs = [tensor.detach().requires_grad_() for tensor in (*sources, *vectors)]
    mixed = attn_res(inputs[: len(sources)], *inputs[len(sources) :], gain=1.5)
    return [mixed.detach(), *torch.autograd.grad(mixed, inputs, incoming)]


def assert_same_bits(ours: list[Tensor], expected: list[Tensor]) -> None:
    for one, reference in zip(ours, expected, strict=True):
        assert torch.equal(one, reference)


def draw(tokens: int, dtype: torch.dtype, width: int) -> Reads:
    return with_running(draw_reads(5, 3, width, dtype, shape=(tokens,)))


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("tokens", CUTS)
def test_any_number_of_threads(tokens: int, dtype: torch.dtype) -> None:
    """Also of the gradient of the queries, which sums over tokens."""
    reads = draw(tokens, dtype, 48)
    expected = results(reads)
    for count in (1, 2, 3, 2, 2):
        with threads(count):
            assert_same_bits(results(reads), expected)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("count", [1, 2])
def test_repeated_runs_of_a_read(count: int, dtype: torch.dtype) -> None:
    """Into memory that held other numbers before."""
    sources = [signed((7, 100, 48), dtype, seed) for seed in range(5)]
    incoming, vectors = signed((7, 100, 48), dtype, 9), draw_vectors(48, dtype)
    with threads(count):
        expected = read_and_gradients(sources, incoming, vectors)
        for _ in range(5):
            noise = [torch.full((7, 100, 48), float("nan"), dtype=dtype) for _ in range(8)]
            del noise
            assert_same_bits(read_and_gradients(sources, incoming, vectors), expected)


def cut(reads: Reads, tokens: slice) -> Reads:
    return replace(
        reads,
        own=[source[tokens] for source in reads.own],
        grads=[grad[tokens] for grad in reads.grads],
        running=[None if grad is None else grad[tokens] for grad in reads.running],
    )


SLICES: dict[str, Callable[[int], slice]] = {
    "first": lambda t: slice(0, t),
    "inner": lambda t: slice(17, 17 + t),
    "last": lambda t: slice(5017 - t, 5017),
}


@pytest.fixture(scope="module", params=[(dtype, width) for dtype in TYPES for width in (1, 33, 64)], ids=str)
def whole(request: pytest.FixtureRequest) -> tuple[Reads, list[Tensor]]:
    """Reads of a batch whose gradients are large enough to be written past the caches, and their results."""
    dtype, width = request.param
    with compiled_operators():
        reads = replace(draw(5017, dtype, width), others=[])
        return reads, results(reads)[:-2]


@pytest.mark.parametrize("where", SLICES)
@pytest.mark.parametrize("tokens", CUTS)
def test_a_token_is_the_same_in_any_batch(whole: tuple[Reads, list[Tensor]], tokens: int, where: str) -> None:
    reads, expected = whole
    window = SLICES[where](tokens)
    ours = results(cut(reads, window))[:-2]
    for one, reference in zip(ours, expected, strict=True):
        rows = reference[window] if len(reference) == len(reads.grads[0]) else reference[:, window]
        assert torch.equal(one, rows)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_sequence_is_read_the_same_alone(dtype: torch.dtype) -> None:
    sources = [signed((6, 50, 64), dtype, seed) for seed in range(9)]
    incoming, vectors = signed((6, 50, 64), dtype, 99), draw_vectors(64, dtype)
    together = read_and_gradients(sources, incoming, vectors)[:-2]
    for b in range(6):
        alone = read_and_gradients([source[b] for source in sources], incoming[b], vectors)[:-2]
        assert_same_bits(alone, [one[b] for one in together])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("width", [1, 33, 64])
def test_a_query_is_the_same_among_any_others(width: int, dtype: torch.dtype) -> None:
    """So a first phase gives a read what it would get alone; and a source counts the same among fewer queries."""
    reads = draw_reads(7, 24, width, dtype, shape=(40,))
    mixed, maximum, total = reads.mix()
    for queries in (slice(0, 1), slice(3, 5), slice(7, 10), slice(11, 24)):
        ours = replace(reads, folded=reads.folded[queries]).mix()
        assert_same_bits([*ours[0], *ours[1:]], [*mixed[queries], maximum[queries], total[queries]])
