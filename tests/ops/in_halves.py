"""Checks of the operators on parts in halves, for whatever kernels are in front of them."""

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_residuals.ops import operators
from attention_residuals.ops.halves import from_half

from .reads import EPS, OPS, Reads, assert_gradients, assert_statistics, draw_reads, with_running
from .support import ROUNDINGS, assert_rounded_once, signed, size

NORM_EPS = 0.1
HALF_ROUNDING = 2.0**-11
"""Of float16, relative: half the distance of two numbers."""
IN_FLOAT32 = torch.finfo(torch.float32).eps


def on(reads: Reads, device: torch.device | str) -> Reads:
    """The same reads there."""
    return replace(
        reads,
        own=[one.to(device) for one in reads.own],
        others=[one.to(device) for one in reads.others],
        folded=reads.folded.to(device),
        grads=[one.to(device) for one in reads.grads],
        running=[None if one is None else one.to(device) for one in reads.running],
    )


def assert_half(half: Tensor, scale: Tensor, expected: Tensor) -> None:
    """`expected` in float16 times powers of two."""
    assert half.dtype == torch.float16 and half.is_contiguous() and half.shape == expected.shape
    assert (scale.frexp().mantissa == 0.5).all()
    largest = expected.abs().amax(-1, keepdim=True)
    allowed = HALF_ROUNDING * expected.abs() + 2.0**-34 * largest + ROUNDINGS * IN_FLOAT32 * size([expected])
    assert ((from_half(half, scale).double() - expected).abs() <= 1.01 * allowed).all()


def check_mix_halves(
    count: int, queries: int, shape: tuple[int, ...], width: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> None:
    """Parts, and the mixture of a read that is whole, which is the part it would have been."""
    reads = on(draw_reads(count, queries, width, dtype, shape=shape), device)
    parts, _, _, _ = OPS.mix_halves(reads.sources, reads.folded, EPS, -1)
    for whole in (-1, queries - 1):
        mixed, maximum, total, scale = OPS.mix_halves(reads.sources, reads.folded, EPS, whole)
        assert len(mixed) == queries
        assert_statistics(maximum, total, reads)
        for r, (one, part, expected) in enumerate(zip(mixed, parts, reads.mixtures, strict=True)):
            if r == whole:
                assert one.dtype == dtype
                assert torch.equal(one, from_half(part, scale[r]).to(dtype))
            else:
                assert_half(one, scale[r], expected)


def check_range_of_halves(dtype: torch.dtype, device: torch.device | str = "cpu", width: int = 8) -> None:
    """Means of two numbers, large, tiny, in between, and side by side; and of zeros."""
    largest, tiny = min(torch.finfo(dtype).max / 4, 2.0**60), max(torch.finfo(dtype).tiny, 2.0**-80)
    powers = torch.logspace(0, 1, width, base=2.0, dtype=torch.float64)
    apart = torch.logspace(0, -20, width, base=2.0, dtype=torch.float64)
    sources = [torch.stack([largest * powers / 2, tiny * powers, powers, apart, 0 * powers]).to(dtype).to(device)]
    sources.append((sources[0].double() / -64).to(dtype))
    folded = torch.zeros(1, width, device=device)
    (half,), _, _, scale = OPS.mix_halves(sources, folded, EPS, -1)
    expected = (sources[0].double() + sources[1].double()) / 2
    assert ((from_half(half, scale[0]).double() - expected).abs() <= 1.01 * HALF_ROUNDING * expected.abs()).all()


def check_extend_halves(
    count: int, shape: tuple[int, ...], width: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> None:
    """One read gone on with from a part: its result, and what its backward makes of the part again."""
    reads = on(draw_reads(count, 1, width, dtype, others=3, shape=shape), device)
    weight = signed((width,), reads.compute, 1003).to(device)
    part = first_phase(reads)
    value = from_half(part[0], part[3]).double()
    for gain in (-0.5, 1.0):
        for norm in (None, weight):
            result, maximum, total, share, source = OPS.extend_halves(
                reads.own, None, reads.folded, part, norm, EPS, NORM_EPS, gain, dtype
            )
            assert source.shape == (0,) and result.dtype == dtype
            assert_statistics(maximum, total, reads)
            expected = gain * mixture_of(value, part, reads)
            if norm is not None:
                expected = F.rms_norm(expected, (width,), norm.double(), NORM_EPS)
            assert_rounded_once(result, expected, 4 * max(size([expected]), NORM_EPS**-0.5), torch.float32)
            check_extend_halves_backward(reads, part, (share, maximum, total), norm, gain)


def first_phase(reads: Reads) -> list[Tensor]:
    """The part of the one read over the others."""
    (half,), *numbers = OPS.mix_halves(reads.others, reads.folded, EPS, -1)
    return [half, *numbers]


def weights_of(reads: Reads) -> Tensor:
    """The weights `[N, T]` of the one read, in float64."""
    return reads.logits.softmax(0)[..., 0]


def mixture_of(value: Tensor, part: list[Tensor], reads: Reads) -> Tensor:
    """The mixture of the one read with `value` as its part, in float64."""
    weights = weights_of(reads).reshape(-1, *value.shape[:-1], 1)
    count = len(reads.own)
    own = sum((w * v.double() for w, v in zip(weights[:count], reads.own, strict=True)), torch.zeros_like(value))
    return own + value * weights[count:].sum(0)


def check_extend_halves_backward(
    reads: Reads, part: list[Tensor], told: tuple[Tensor, Tensor, Tensor], norm: Tensor | None, gain: float
) -> None:
    """Gradients of a norm, and offsets, from the mixture that the part makes."""
    share, maximum, total = told
    (grad,), width = reads.grads, reads.folded.shape[-1]
    grad_mixed, delta, beside, grad_weight = OPS.extend_halves_backward(
        grad, reads.own, reads.folded, part[0], share, maximum, total, norm, EPS, NORM_EPS, gain
    )
    value = from_half(part[0], part[3]).double()
    mixed = gain * mixture_of(value, part, reads)
    if norm is None:
        assert grad_mixed.shape == grad_weight.shape == (0,)
        grad_mixed = grad
    else:
        leaves = [mixed.requires_grad_(), norm.double().requires_grad_()]
        normed = F.rms_norm(leaves[0], (width,), leaves[1], NORM_EPS)
        expected, expected_weight = torch.autograd.grad(normed, leaves, grad.double())
        assert grad_mixed.dtype == grad.dtype
        assert_rounded_once(grad_mixed, expected, 4 * max(size([expected]), NORM_EPS**-0.5), torch.float32)
        scale = 4 * max(grad[..., 0].numel() ** 0.5 * NORM_EPS**-0.5, size([expected_weight]))
        assert_rounded_once(grad_weight, expected_weight, scale, torch.float32)
    mixed, tokens = mixed.detach(), delta.shape
    inner = (grad_mixed.double() * mixed / gain).sum(-1).reshape(tokens)
    of_part = (grad_mixed.double() * value).sum(-1).reshape(tokens) * weights_of(reads)[len(reads.own) :].sum(0)
    scale = 4 * max(size([inner, of_part]), width**0.5 * size([grad_mixed]))
    assert_rounded_once(delta, inner, scale)
    assert_rounded_once(beside, inner - of_part, scale)


def check_offsets_halves(
    count: int, queries: int, shape: tuple[int, ...], width: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> None:
    """Gradients from parts in halves and their shares, every other read with its delta instead; sums carried on."""
    reads = on(with_running(draw_reads(count, queries, width, dtype, shape=shape, others=2)), device)
    _, maxima, totals = OPS.mix(reads.sources, reads.folded, EPS, 1.0, True)
    halves, tops, sums, scales = OPS.mix_halves(reads.others, reads.folded, EPS, -1)
    shares = list(scales * torch.exp(tops - maxima) * sums / totals)
    mixed, _, _ = reads.mix()
    products = [OPS.row_products(grad, one) for grad, one in zip(reads.grads, mixed, strict=True)]
    known = [product if r % 2 else None for r, product in enumerate(products)]
    parts = [None if r % 2 else half for r, half in enumerate(halves)]
    given = [None if r % 2 else share for r, share in enumerate(shares)]
    statistics = list(maxima), list(totals)
    operands = reads.own, reads.running, reads.folded, reads.grads, *statistics, known, parts, given
    grads, sums_of_all, made = OPS.mix_backward(*operands, [], reads.gains, EPS)
    exact: Any = [doubled(operand) for operand in operands]
    expected, expected_sums, expected_made = operators.mix_backward(*[*exact, [], reads.gains, EPS])
    for one, reference in zip(grads, expected, strict=True):
        assert_rounded_once(one, reference, 4 * size(expected), torch.float32)
    scale = 3 * size(reads.own) * reads.own[0].numel() ** 0.5
    total = expected_sums.sum(0)
    assert_rounded_once(sums_of_all.sum(0), total, max(scale, size([total])))
    assert len(made) == len(expected_made) == (queries + 1) // 2
    for one, reference in zip(made, expected_made, strict=True):
        assert_rounded_once(one, reference, max(size([reference]), width**0.5))
    carried = [None if r % 3 == 1 else sums_of_all[:, r] for r in range(queries)]
    _, again, _ = OPS.mix_backward(*operands, carried, reads.gains, EPS)
    twice = torch.stack([one if r % 3 == 1 else 2 * one for r, one in enumerate(total)])
    assert_rounded_once(again.sum(0), twice, 2 * max(scale, size([total])))


def doubled(operand: list[Tensor | None] | Tensor) -> list[Tensor | None] | Tensor:
    """The same in float64."""
    if isinstance(operand, Tensor):
        return operand.double()
    return [None if one is None else one.double() for one in operand]


def check_offsets_elsewhere(
    count: int, queries: int, shape: tuple[int, ...], width: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> None:
    """Deltas that leave out the sources at hand, and reads that have no other sources."""
    reads = on(with_running(draw_reads(count, queries, width, dtype, shape=shape, others=2)), device)
    weights = reads.logits.softmax(0)
    deltas = []
    for r, grad in enumerate(reads.grads):
        products = [(grad.double() * v.double()).sum(-1).flatten() for v in reads.others]
        shares = [w * p for w, p in zip(weights[count:, :, r], products, strict=True)]
        deltas.append(sum(shares, torch.zeros_like(shares[0])).to(reads.compute))
    _, maxima, totals = OPS.mix(reads.sources, reads.folded, EPS, 1.0, True)
    statistics = list(maxima), list(totals)
    operands = reads.own, reads.running, reads.folded, reads.grads, *statistics
    grads, sums, made = OPS.mix_backward(*operands, deltas, [], [], [], reads.gains, EPS, True)
    assert_gradients((grads, sums.sum(0)), reads)
    assert not made
    alone = replace(reads, others=[])
    _, maxima, totals = alone.mix()
    operands = alone.own, alone.running, alone.folded, alone.grads, list(maxima), list(totals)
    grads, sums, _ = OPS.mix_backward(*operands, [None] * queries, [], [], [], alone.gains, EPS, True)
    assert_gradients((grads, sums.sum(0)), alone)


def check_exact_parts(count: int, queries: int, width: int) -> None:
    """A part that is not rounded, in float64, gives the gradients of the whole reads: the plain operator."""
    reads = with_running(draw_reads(count, queries, width, torch.float64, others=2))
    _, maxima, totals = reads.mix()
    parts, tops, sums = OPS.mix(reads.others, reads.folded, EPS, 1.0, True)
    shares = list(torch.exp(tops - maxima) * sums / totals)
    grads, grad_folded, made = operators.mix_backward(
        reads.own, reads.running, reads.folded, reads.grads, list(maxima), list(totals),
        [None] * queries, parts, shares, [], reads.gains, EPS,
    )  # fmt: skip
    assert_gradients((grads, grad_folded.sum(0)), reads)
    weights = reads.logits.softmax(0)
    for r, one in enumerate(made):
        products = torch.stack([(reads.grads[r] * v).sum(-1).flatten() for v in reads.own])
        expected = (weights[:count, :, r] * products).sum(0)
        assert_rounded_once(one, expected, max(size([expected]), width**0.5))
