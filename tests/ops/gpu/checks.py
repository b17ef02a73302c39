"""What the kernels must answer, each check small enough for the interpreter, broken kernels included."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

import torch
import torch.nn.functional as F

from ..in_halves import (
    check_extend_halves,
    check_mix_halves,
    check_offsets_elsewhere,
    check_offsets_halves,
    check_range_of_halves,
)
from ..reads import EPS, OPS, Reads, assert_gradients, assert_mixtures, assert_statistics, draw_reads, with_running
from ..support import assert_rounded_once, signed, size
from .support import DEVICE

NORM_EPS = 0.1


def draw(*arguments, **keywords) -> Reads:
    """`draw_reads` on the device."""
    reads = with_running(draw_reads(*arguments, **keywords))
    return replace(
        reads,
        own=[one.to(DEVICE) for one in reads.own],
        others=[one.to(DEVICE) for one in reads.others],
        folded=reads.folded.to(DEVICE),
        grads=[one.to(DEVICE) for one in reads.grads],
        running=[None if one is None else one.to(DEVICE) for one in reads.running],
    )


def check_mix(count: int, queries: int, shape: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    """Mixtures, rounded and not, and their statistics."""
    reads = draw(count, queries, width, dtype, shape=shape)
    for wide in (False, True):
        mixed, maximum, total = reads.mix(wide)
        assert_mixtures(mixed, reads)
        assert_statistics(maximum, total, reads)
    mixed, _, _ = OPS.mix(reads.sources, reads.folded, EPS, -0.5, True)
    assert_mixtures(mixed, reads, gain=-0.5)


def check_backward(count: int, queries: int, shape: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    """Gradients of sources, added to running ones, and of queries; with other sources about, and without."""
    reads = draw(count, queries, width, dtype, shape=shape, others=2)
    assert_gradients(reads.mix_backward(with_deltas=True), reads)
    assert_gradients(reads.mix_backward(with_deltas=True, from_mixtures=True), reads)
    alone = replace(reads, others=[])
    assert_gradients(alone.mix_backward(with_deltas=False), alone)


def check_extend(count: int, shape: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    """One read gone on with, and the norm behind it."""
    reads = draw(count, 1, width, dtype, others=3, shape=shape)
    reads.gains[0] = -0.5
    weight = signed((width,), reads.compute, 1003).to(DEVICE)
    mixed, maximum, total, normed = reads.normed(weight, NORM_EPS)
    assert_mixtures([mixed], reads, gain=-0.5)
    assert_statistics(maximum, total, reads)
    expected = F.rms_norm(-0.5 * reads.mixtures[0], (width,), weight.double(), NORM_EPS)
    assert normed.dtype == dtype
    assert_rounded_once(normed, expected, max(size([expected]), NORM_EPS**-0.5), reads.compute)


def check_added(shape: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    """A sum made on the way to its read, and read as if it had been there."""
    reads = draw(2, 1, width, dtype, others=3, shape=shape)
    weight = signed((width,), reads.compute, 1003).to(DEVICE)
    *results, source = reads.added(weight, NORM_EPS)
    expected = reads.own[0].double() + reads.own[1].double()
    assert_rounded_once(source, expected, size([expected]), torch.float32)
    for ours, reference in zip(results, replace(reads, own=[source]).normed(weight, NORM_EPS), strict=True):
        assert torch.equal(ours, reference)


def check_norm(shape: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    """The gradients of a norm, and the products that go with them."""
    grad, mixed = signed((*shape, width), dtype, 1).to(DEVICE), signed((*shape, width), torch.float32, 2).to(DEVICE)
    weight = signed((width,), torch.float32, 3).to(DEVICE)
    grad_mixed, products, grad_weight = OPS.norm_backward(grad, mixed, weight, NORM_EPS)
    leaves = [mixed.double().requires_grad_(), weight.double().requires_grad_()]
    normed = F.rms_norm(leaves[0], (width,), leaves[1], NORM_EPS)
    expected, expected_weight = torch.autograd.grad(normed, leaves, grad.double())
    assert_rounded_once(grad_mixed, expected, size([expected]), torch.float32)
    inner = (grad_mixed.double() * mixed.double()).sum(-1).flatten()
    assert_rounded_once(products, inner, max(size([inner]), width**0.5 * size([expected])))
    assert_rounded_once(grad_weight, expected_weight, max(prod(shape) ** 0.5, size([expected_weight])), torch.float32)


def check_products(shape: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    reads = draw_reads(1, 1, width, dtype, shape=shape)
    grad, mixed = reads.grads[0].to(DEVICE), reads.own[0].float().to(DEVICE)
    expected = (grad.double() * mixed.double()).sum(-1).flatten()
    assert_rounded_once(OPS.row_products(grad, mixed), expected, max(size([expected]), width**0.5))


def check_far_apart(dtype: torch.dtype) -> None:
    """Logits of 1e4: one source has all the weight, whichever comes first, and a part far below has none."""
    reads = draw(1, 1, 64, dtype, others=1, shape=(3,))
    source = reads.own[0]
    query = 1e4 * source[:1].float() / 64
    for sources in ([source, -source], [-source, source]):
        (mixed,), _, _ = OPS.mix(sources, query, 1e-6, 1.0, False)
        assert torch.equal(mixed[0], source[0])
    for own, part in [([source], [-source]), ([-source], [source])]:
        values, *statistics = OPS.mix(part, query, 1e-6, 1.0, True)
        mixed, *_ = OPS.extend(own, None, query, [*values, *statistics], None, 1e-6, 0.0, 1.0, dtype)
        assert torch.equal(mixed[0], source[0].float())


def check_zeros(dtype: torch.dtype) -> None:
    """All sources zero: so are the mixture and, without a gradient from outside, the gradients of the queries."""
    sources = [torch.zeros(5, 48, dtype=dtype, device=DEVICE)] * 3
    folded = signed((2, 48), torch.float32, 7).to(DEVICE)
    mixed, maximum, total = OPS.mix(sources, folded, 1e-6, 1.0, False)
    assert not any(one.any() for one in mixed) and not maximum.any() and (total == 3).all()
    grads = [signed((5, 48), dtype, 8 + r).to(DEVICE) for r in range(2)]
    _, sums, _ = OPS.mix_backward(
        sources, [], folded, grads, list(maximum), list(total), [], [], [], [], [1.0, 1.0], 1e-6
    )
    assert not sums.any()


def check_strided() -> None:
    """Sources whose rows need two strides, and whose numbers a third."""
    reads = draw(2, 2, 6, torch.float32, shape=(5, 4))
    expected = reads.mix()
    laid = [v.transpose(0, 1).contiguous().transpose(0, 1) for v in reads.own]
    spread = [torch.stack([v, torch.full_like(v, float("nan"))], -1)[..., 0] for v in laid]
    for own in (laid, spread):
        mixed, maximum, total = replace(reads, own=own).mix()
        for one, reference in zip([*mixed, maximum, total], [*expected[0], *expected[1:]], strict=True):
            assert torch.equal(one, reference)


def check_halves(shape: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    """All operators that know parts in halves."""
    for queries in (1, 2, 5):
        check_mix_halves(3, queries, shape, width, dtype, DEVICE)
    for count in (0, 1, 3):
        check_extend_halves(count, shape, width, dtype, DEVICE)
    for queries in (1, 3):
        check_offsets_halves(2, queries, shape, width, dtype, DEVICE)
        check_offsets_elsewhere(2, queries, shape, width, dtype, DEVICE)


def every_check() -> Iterator[tuple[str, Callable[[], None]]]:
    """A few of each kind in float32 or with float16 in halves, between them every branch of every kernel."""
    dtype = torch.float32
    yield "mix", lambda: check_mix(3, 1, (37,), 33, dtype)
    yield "mix, packed, five queries", lambda: check_mix(5, 5, (2, 35), 64, dtype)
    yield "mix, in slices", lambda: check_mix(3, 2, (2,), 1500, dtype)
    yield "extend", lambda: check_extend(2, (37,), 33, dtype)
    yield "extend, packed", lambda: check_extend(1, (70,), 64, dtype)
    yield "extend, a sum", lambda: check_added((37,), 33, dtype)
    yield "backward, one query", lambda: check_backward(3, 1, (70,), 33, dtype)
    yield "backward, five queries", lambda: check_backward(3, 5, (70,), 64, dtype)
    yield "backward, several tiles", lambda: check_backward(1, 2, (37,), 300, dtype)
    yield "norm", lambda: check_norm((70,), 33, dtype)
    yield "norm, packed", lambda: check_norm((37,), 64, dtype)
    yield "products", lambda: check_products((37,), 33, dtype)
    yield "strided", check_strided
    yield "far apart", lambda: check_far_apart(dtype)
    yield "backward, deltas elsewhere", lambda: check_offsets_elsewhere(2, 5, (37,), 33, dtype, DEVICE)
    for narrow in (torch.bfloat16, torch.float16):
        yield "halves, mix", lambda narrow=narrow: check_mix_halves(3, 5, (37,), 33, narrow, DEVICE)
        yield "halves, range", lambda narrow=narrow: check_range_of_halves(narrow, DEVICE)
    yield "halves, mix in slices", lambda: check_mix_halves(3, 2, (2,), 1500, narrow, DEVICE)
    yield "halves, range in slices", lambda: check_range_of_halves(narrow, DEVICE, 1500)
    yield "halves, extend", lambda: check_extend_halves(2, (37,), 33, narrow, DEVICE)
    yield "halves, the part alone", lambda: check_extend_halves(0, (37,), 64, narrow, DEVICE)
    yield "halves, backward", lambda: check_offsets_halves(2, 3, (37,), 33, narrow, DEVICE)
    yield "halves, backward, one query", lambda: check_offsets_halves(1, 1, (70,), 33, narrow, DEVICE)
