"""Checks of the operators on mixtures that are split, for whatever kernels are in front of them."""

from dataclasses import replace
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_residuals.ops.splitting import STEPS, join

from .reads import EPS, OPS, Reads, assert_statistics, draw_reads, with_running
from .support import ROUNDINGS, assert_rounded_once, signed, size

NORM_EPS = 0.1


def on(reads: Reads, device: torch.device) -> Reads:
    """The same reads there."""
    return replace(
        reads,
        own=[one.to(device) for one in reads.own],
        others=[one.to(device) for one in reads.others],
        folded=reads.folded.to(device),
        grads=[one.to(device) for one in reads.grads],
        running=[None if one is None else one.to(device) for one in reads.running],
    )


def assert_split(rounded: Tensor, rest: Tensor, expected: Tensor, dtype: torch.dtype, carried: float = 0.0) -> None:
    """`expected`, as well as both can tell it, and the first by itself.

    `carried` is the size of what it was made of, if that was split.
    """
    assert rounded.dtype == dtype and rest.dtype == torch.int8
    assert rounded.is_contiguous() and rest.is_contiguous() and rounded.shape == rest.shape == expected.shape
    half_step = torch.finfo(dtype).eps / (4 * STEPS)
    in_float32 = torch.finfo(torch.float32).eps
    assert_rounded_once(rounded, expected, size([expected]) + carried * half_step / in_float32, torch.float32)
    allowed = 1.01 * half_step * (expected.abs() + carried) + ROUNDINGS * in_float32 * size([expected])
    assert ((join(rounded, rest).double() - expected).abs() <= allowed).all()


def part_of(reads: Reads) -> list[Tensor]:
    """The one read of the others, split."""
    (rounded, rest), *statistics = OPS.mix(reads.others, reads.folded, EPS, 1.0, True, True)
    return [rounded, *statistics, rest]


def check_mix_in_two(
    count: int, queries: int, shape: tuple[int, ...], width: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> None:
    reads = on(draw_reads(count, queries, width, dtype, shape=shape), torch.device(device))
    mixed, maximum, total = OPS.mix(reads.sources, reads.folded, EPS, 1.0, True, True)
    assert len(mixed) == 2 * queries
    for rounded, rest, expected in zip(mixed[:queries], mixed[queries:], reads.mixtures, strict=True):
        assert_split(rounded, rest, expected, dtype)
    assert_statistics(maximum, total, reads)


def check_tiny_in_two(dtype: torch.dtype, device: torch.device | str = "cpu") -> None:
    """Means of two numbers, down to the smallest of float16, and of zeros."""
    sources = [1e-4 * 0.5 ** torch.arange(24.0).reshape(3, 8), torch.zeros(3, 8)]
    sources[1][1:] = -3e-8
    sources = [source.to(dtype).to(device) for source in sources]
    folded = torch.zeros(1, 8, device=device)
    for pair in (sources, [sources[1], sources[1]]):
        (rounded, rest), *_ = OPS.mix(pair, folded, EPS, 1.0, True, True)
        expected = (pair[0].double() + pair[1].double()) / 2
        assert_rounded_once(rounded, expected.to(dtype).double(), 1e-30)
        normal = expected.abs().clamp_min(torch.finfo(dtype).tiny)
        allowed = 1.01 * torch.finfo(dtype).eps / (4 * STEPS) * normal
        assert ((join(rounded, rest).double() - expected).abs() <= allowed).all()


def check_extend_in_two(
    count: int, shape: tuple[int, ...], width: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> None:
    """One read gone on with from a part that is split; without sources and gain it is the part once more."""
    reads = on(draw_reads(count, 1, width, dtype, others=3, shape=shape), torch.device(device))
    weight = signed((width,), reads.compute, 1003).to(device)
    for gain in (-0.5, 1.0):
        for norm in (None, weight):
            mixed, maximum, total, normed, rest, source = OPS.extend(
                reads.own, None, reads.folded, part_of(reads), norm, EPS, NORM_EPS, gain, dtype
            )
            assert source.shape == (0,)
            assert_statistics(maximum, total, reads)
            if count or gain != 1.0:
                assert_split(mixed, rest, gain * reads.mixtures[0], dtype, abs(gain) * size(reads.others))
            else:
                assert mixed.shape == rest.shape == (0,) and mixed.dtype == dtype and rest.dtype == torch.int8
            if norm is None:
                assert normed.shape == (0,)
                continue
            expected = F.rms_norm(gain * reads.mixtures[0], (width,), weight.double(), NORM_EPS)
            # What the part is off by is less than a hundredth of the rounding that follows.
            assert_rounded_once(normed, expected, 4 * max(size([expected]), NORM_EPS**-0.5), torch.float32)


def check_offsets_in_two(
    count: int, queries: int, shape: tuple[int, ...], width: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> None:
    """Offsets that are made of mixtures, and the gradients from them."""
    reads = on(with_running(draw_reads(count, queries, width, dtype, shape=shape, others=2)), torch.device(device))
    gain = -0.5
    mixed, maxima, totals = OPS.mix(reads.sources, reads.folded, EPS, gain, True, True)
    reads = replace(reads, gains=[gain] * queries)
    known = [
        OPS.row_products(grad, join(one, rest)) / gain if r % 2 else None
        for r, (grad, one, rest) in enumerate(zip(reads.grads, mixed[:queries], mixed[queries:], strict=True))
    ]
    given = [one if known[n % queries] is None else None for n, one in enumerate(mixed)]
    grads, _, made = OPS.mix_backward(
        reads.own, reads.running, reads.folded, reads.grads, list(maxima), list(totals), known, given, reads.gains, EPS
    )
    assert len(made) == (queries + 1) // 2
    for one, r in zip(made, range(0, queries, 2), strict=True):
        expected = (reads.grads[r].double() * join(mixed[r], mixed[queries + r]).double()).sum(-1).flatten() / gain
        assert_rounded_once(one, expected, max(size([expected]), width**0.5))
        exact = (reads.grads[r].double() * reads.mixtures[r]).sum(-1).flatten()
        assert ((one - exact).abs() <= torch.finfo(dtype).eps / STEPS * width**0.5 * size([exact])).all()
    for one, reference in zip(grads, reads.gradients[0], strict=True):
        assert_rounded_once(one, reference, 16 * size([reference]), torch.float32)


def check_norm_in_two(
    shape: tuple[int, ...], width: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> None:
    """The gradients of a norm of numbers that are split."""
    grad = signed((*shape, width), dtype, 1).to(device)
    rounded = signed((*shape, width), dtype, 2).to(device)
    rest = (100 * signed((*shape, width), torch.float32, 3).clamp(-1.2, 1.2)).to(torch.int8).to(device)
    weight = signed((width,), torch.float32, 4).to(device)
    grad_mixed, products, grad_weight = OPS.norm_backward(grad, rounded, weight, NORM_EPS, rest)
    leaves = [join(rounded, rest).double().requires_grad_(), weight.double().requires_grad_()]
    normed = F.rms_norm(leaves[0], (width,), leaves[1], NORM_EPS)
    expected, expected_weight = torch.autograd.grad(normed, leaves, grad.double())
    assert_rounded_once(grad_mixed, expected, size([expected]), torch.float32)
    inner = (grad_mixed.double() * leaves[0].detach()).sum(-1).flatten()
    assert_rounded_once(products, inner, max(size([inner]), width**0.5 * size([expected])))
    assert_rounded_once(grad_weight, expected_weight, max(prod(shape) ** 0.5, size([expected_weight])), torch.float32)
