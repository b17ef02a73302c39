"""Numbers that a read must not drop, hide or spread: NaN, infinities, large logits, zeros."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import attn_res

from .reads import EPS, OPS, Reads, draw_reads, with_running
from .support import DTYPES, Kernels, assert_rounded_once, draw_sources, draw_vectors, each_kernel, signed, size

COUNT, QUERIES, WIDTH, TOKENS = 9, 3, 19, 70
"""Tokens for chunks of two, so that a spoilt one has a neighbour in its chunk."""

SPOILT = 37


def spoil(tensor: Tensor, value: float) -> Tensor:
    """A copy with `value` as one feature of the token `SPOILT`."""
    tensor = tensor.clone()
    tensor[SPOILT, 7] = value
    return tensor


def assert_spoilt_there_alone(ours: list[Tensor], clean: list[Tensor]) -> None:
    """Of each `[T, D]` all of the token is NaN, or not finite at all, and the other tokens are the same bits."""
    others = [t for t in range(TOKENS) if t != SPOILT]
    for one, expected in zip(ours, clean, strict=True):
        assert expected.isfinite().all()
        assert not one[SPOILT].isfinite().any()
        assert torch.equal(one[others], expected[others])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("which", [0, 1, COUNT - 1])
@each_kernel
def test_a_source_that_is_not_finite(kernels: Kernels, which: int, value: float, dtype: torch.dtype) -> None:
    clean = draw_reads(COUNT, QUERIES, WIDTH, dtype, shape=(TOKENS,))
    spoilt = replace(clean, own=[spoil(v, value) if n == which else v for n, v in enumerate(clean.own)])
    with kernels():
        assert_spoilt_there_alone(spoilt.mix()[0], clean.mix()[0])
        for with_deltas in (False, True):
            grads, grad_folded = spoilt.mix_backward(with_deltas)
            assert_spoilt_there_alone(grads, clean.mix_backward(with_deltas)[0])
            assert grad_folded.isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@each_kernel
def test_a_part_that_is_not_finite(kernels: Kernels, value: float, dtype: torch.dtype) -> None:
    clean = draw_reads(COUNT, 1, WIDTH, dtype, shape=(TOKENS,), others=2)

    def read(reads: Reads) -> list[Tensor]:
        values, *statistics = OPS.mix(reads.others, reads.folded, EPS, 1.0, True)
        weight = torch.ones_like(reads.folded[0])
        mixed, _, _, normed, *_ = OPS.extend(
            reads.own, None, reads.folded, [*values, *statistics], weight, EPS, EPS, 1.0, dtype
        )
        return [mixed, normed]

    with kernels():
        spoilt = replace(clean, others=[spoil(clean.others[0], value), clean.others[1]])
        assert_spoilt_there_alone(read(spoilt), read(clean))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@each_kernel
def test_a_gradient_that_is_not_finite(kernels: Kernels, value: float, dtype: torch.dtype) -> None:
    clean = draw_reads(COUNT, QUERIES, WIDTH, dtype, shape=(TOKENS,))
    spoilt = replace(clean, grads=[clean.grads[0], spoil(clean.grads[1], value), clean.grads[2]])
    with kernels():
        for with_deltas in (False, True):
            grads, grad_folded = spoilt.mix_backward(with_deltas)
            assert_spoilt_there_alone(grads, clean.mix_backward(with_deltas)[0])
            assert grad_folded[1].isnan().all()
            assert grad_folded[[0, 2]].isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@each_kernel
def test_a_gradient_from_elsewhere_that_is_not_finite(kernels: Kernels, value: float, dtype: torch.dtype) -> None:
    clean = with_running(draw_reads(COUNT, QUERIES, WIDTH, dtype, shape=(TOKENS,)))
    running = [spoil(grad, value) if grad is not None and n == 2 else grad for n, grad in enumerate(clean.running)]
    with kernels():
        grads, grad_folded = replace(clean, running=running).mix_backward(with_deltas=False)
        expected, expected_folded = clean.mix_backward(with_deltas=False)
    for n, (ours, theirs) in enumerate(zip(grads, expected, strict=True)):
        reference = theirs.clone()
        if n == 2:
            reference[SPOILT, 7] = value
        assert torch.equal(ours.nan_to_num(12345.0), reference.nan_to_num(12345.0))
    assert torch.equal(grad_folded, expected_folded)


@pytest.mark.parametrize("dtype", DTYPES)
@each_kernel
def test_a_query_that_is_not_finite(kernels: Kernels, dtype: torch.dtype) -> None:
    """It spoils its own read, at every token, and no other."""
    clean = draw_reads(COUNT, QUERIES, WIDTH, dtype, shape=(TOKENS,))
    folded = clean.folded.clone()
    folded[1, 3] = float("nan")
    with kernels():
        mixed, expected = replace(clean, folded=folded).mix()[0], clean.mix()[0]
    assert mixed[1].isnan().all()
    assert torch.equal(mixed[0], expected[0]) and torch.equal(mixed[2], expected[2])


@pytest.mark.parametrize("dtype", DTYPES)
@each_kernel
def test_logits_of_ten_thousand(kernels: Kernels, dtype: torch.dtype) -> None:
    """One source takes all the weight; the mixture is that source and the gradient goes to it alone."""
    reads = draw_reads(COUNT, 1, 64, dtype, shape=(TOKENS,))
    steep = replace(reads, folded=1e4 * reads.folded, gains=[3.0])
    with kernels():
        (mixed,), maximum, _ = steep.mix(wide=False)
        grads, grad_folded = steep.mix_backward(with_deltas=False)
    logits = steep.logits[..., 0]
    second, first = logits.topk(2, dim=0).values.flip(0)
    clear = first - second > 800  # e^-800 is zero in every type
    winner = logits.argmax(0)
    assert clear.sum() > TOKENS // 4
    assert maximum.max() > 1e4
    assert torch.equal(mixed[clear], torch.stack(reads.own)[winner, torch.arange(TOKENS)][clear])
    for n, grad in enumerate(grads):
        expected = torch.where((winner == n).unsqueeze(-1), 3.0 * reads.grads[0], 0)
        assert torch.equal(grad[clear], expected[clear])
    assert grad_folded.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@each_kernel
def test_equal_logits_of_ten_thousand_share_the_weight(kernels: Kernels, dtype: torch.dtype) -> None:
    (source,) = draw_sources(1, (5,), 64, dtype)
    query = 1e4 * source[:1] / 64
    with kernels():
        (mixed,), _, total = OPS.mix([source, source, -source], query, EPS, 1.0, False)
    assert torch.equal(total[0, :1], torch.tensor([2.0], dtype=dtype))
    assert torch.equal(mixed[0], source[0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [1, 2, 9])
@each_kernel
def test_sources_of_zeros(kernels: Kernels, count: int, dtype: torch.dtype) -> None:
    """Their keys are zero too, so a read is their mean: nothing, with the gradient shared equally."""
    reads = draw_reads(count, QUERIES, WIDTH, dtype, shape=(TOKENS,))
    zeros = replace(reads, own=[torch.zeros_like(source) for source in reads.own])
    with kernels():
        mixed, maximum, total = zeros.mix(wide=False)
        grads, grad_folded = zeros.mix_backward(with_deltas=False)
    assert not torch.stack([*mixed]).any() and not maximum.any() and not grad_folded.any()
    assert torch.equal(total, torch.full_like(total, count))
    shares = [gain / count * grad.double() for gain, grad in zip(reads.gains, reads.grads, strict=True)]
    expected = torch.stack(shares).sum(0)
    for grad in grads:
        assert_rounded_once(grad, expected, size([expected]))


@pytest.mark.parametrize("gain", [1.0, 3.0])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("width", [1, 19, 64])
@each_kernel
def test_one_source_is_passed_on(kernels: Kernels, width: int, weighted: bool, dtype: torch.dtype, gain: float) -> None:
    """Times the gain, and query and key weight get exactly zero."""
    (source,) = [source.requires_grad_() for source in draw_sources(1, (TOKENS,), width, dtype)]
    vectors = [vector.requires_grad_() for vector in draw_vectors(width, dtype)]
    incoming = signed((TOKENS, width), dtype, seed=5)
    with kernels():
        if weighted:
            mixed, weights = attn_res([source], *vectors, gain=gain, return_weights=True)
            assert torch.equal(weights, torch.ones_like(weights))
        else:
            mixed = attn_res([source], *vectors, gain=gain)
        grad, *grad_vectors = torch.autograd.grad(mixed, [source, *vectors], incoming)
    assert torch.equal(mixed, gain * source)
    assert torch.equal(grad, gain * incoming)
    assert all(torch.equal(one, torch.zeros_like(one)) for one in grad_vectors)
