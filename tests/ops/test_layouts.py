"""Where the rows of sources and gradients lie in memory changes nothing, and memory is only read where it is theirs."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import attn_res

from .reads import Reads, assert_gradients, assert_mixtures, assert_statistics, draw_reads, with_running
from .support import DTYPES, Kernels, compiled_operators, draw_vectors, each_kernel, signed

SHAPE, WIDTH, COUNT, QUERIES = (6, 5), 19, 5, 2


def padded(tensor: Tensor, before: int, after: int) -> Tensor:
    """A copy of `tensor` whose features lie `before` into rows that are longer by both; NaN around it."""
    room = tensor.new_full((*tensor.shape[:-1], before + tensor.shape[-1] + after), float("nan"))
    room[..., before : before + tensor.shape[-1]] = tensor
    return room[..., before : before + tensor.shape[-1]]


def spread(tensor: Tensor, step: int) -> Tensor:
    """A copy of `tensor` with its features `step` apart; NaN between them."""
    room = tensor.new_full((*tensor.shape, step), float("nan"))
    room[..., 0] = tensor
    return room[..., 0]


def permuted(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """A copy of `tensor` whose dimensions lie in another order in memory."""
    back = tuple(order.index(k) for k in range(len(order)))
    return tensor.permute(order).contiguous().permute(back)


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda t: permuted(t, (1, 0, 2)),
    "width outermost": lambda t: permuted(t, (2, 0, 1)),
    "width between": lambda t: permuted(t, (0, 2, 1)),
    "every third feature": lambda t: spread(t, 3),
    "longer rows": lambda t: padded(t, 1, 2),
    "longer rows, transposed": lambda t: padded(t.transpose(0, 1), 3, 0).transpose(0, 1),
    "unaligned": lambda t: torch.cat([t.new_full((1,), float("nan")), t.flatten()])[1:].view(t.shape),
}


def results(reads: Reads) -> list[Tensor]:
    """All that `mix` and `mix_backward` answer."""
    mixed, maximum, total = reads.mix(wide=False)
    grads, grad_folded = reads.mix_backward(with_deltas=False)
    return [*mixed, maximum, total, *grads, grad_folded, *reads.mix_backward(with_deltas=True)[0]]


def assert_same_bits(ours: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    for one, reference in zip(ours, expected, strict=True):
        assert torch.equal(one, reference)


def assert_layout_does_not_matter(kernels: Kernels, moved: Reads, reads: Reads, alike: int = 1) -> None:
    """`moved` are the same numbers as the contiguous `reads`. The plain path may sum in another order."""
    with kernels():
        mixed, maximum, total = moved.mix(wide=False)
        assert_mixtures(mixed, moved)
        assert_statistics(maximum, total, moved)
        for with_deltas in (False, True):
            assert_gradients(moved.mix_backward(with_deltas), moved, alike)
        if kernels is compiled_operators:
            assert_same_bits(results(moved), results(reads))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@each_kernel
def test_any_layout_gives_the_same_bits(kernels: Kernels, layout: str, dtype: torch.dtype) -> None:
    place = LAYOUTS[layout]
    reads = with_running(draw_reads(COUNT, QUERIES, WIDTH, dtype, shape=SHAPE))
    moved = replace(
        reads,
        own=[place(source) for source in reads.own],
        grads=[place(grad) for grad in reads.grads],
        running=[None if grad is None else place(grad) for grad in reads.running],
        folded=permuted(reads.folded, (1, 0)),
    )
    assert all(source.stride() != place(source).stride() for source in reads.own) or layout == "unaligned"
    assert_layout_does_not_matter(kernels, moved, reads)


@pytest.mark.parametrize("dtype", DTYPES)
@each_kernel
def test_each_source_in_another_layout(kernels: Kernels, dtype: torch.dtype) -> None:
    reads = draw_reads(len(LAYOUTS), QUERIES, WIDTH, dtype, shape=SHAPE)
    moved = replace(reads, own=[place(v) for place, v in zip(LAYOUTS.values(), reads.own, strict=True)])
    assert_layout_does_not_matter(kernels, moved, reads)


EXPANDED: dict[str, Callable[[Tensor], Tensor]] = {
    "over all tokens": lambda t: t[:1, :1].expand(t.shape),
    "over the first dimension": lambda t: t[:1].expand(t.shape),
    "over the second dimension": lambda t: t[:, :1].expand(t.shape),
    "over features": lambda t: t[..., :1].expand(t.shape),
    "one number": lambda t: t[:1, :1, :1].expand(t.shape),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", EXPANDED)
@each_kernel
def test_expanded_sources_and_gradients(kernels: Kernels, kind: str, dtype: torch.dtype) -> None:
    """As autograd hands them in for a sum of the mixture, for instance."""
    expand = EXPANDED[kind]
    reads = draw_reads(COUNT, QUERIES, WIDTH, dtype, shape=SHAPE)
    views = replace(
        reads,
        own=[expand(source) for source in reads.own],
        grads=[expand(grad) for grad in reads.grads],
        running=[expand(grad) for grad in reads.own],
    )
    copies = replace(
        views,
        own=[source.contiguous() for source in views.own],
        grads=[grad.contiguous() for grad in views.grads],
        running=[None if grad is None else grad.contiguous() for grad in views.running],
    )
    assert_layout_does_not_matter(kernels, views, copies, alike=reads.own[0][..., 0].numel())


@pytest.mark.parametrize("dtype", DTYPES)
@each_kernel
def test_sources_that_share_storage(kernels: Kernels, dtype: torch.dtype) -> None:
    """The same tensor twice, overlapping windows of one, and one that is another's gradient too."""
    reads = draw_reads(2, QUERIES, WIDTH, dtype, shape=SHAPE)
    long = signed((*SHAPE, WIDTH + 4), dtype, seed=5)
    own = [reads.own[0], reads.own[0], long[..., :WIDTH], long[..., 4:], reads.grads[0]]
    shared, copies = replace(reads, own=own), replace(reads, own=[source.clone() for source in own])
    before = [source.clone() for source in own]
    assert_layout_does_not_matter(kernels, shared, copies)
    assert_same_bits([source.contiguous() for source in own], before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1), (7,), (2, 1, 3), (2, 3, 2, 2)])
@each_kernel
def test_leading_dimensions_are_tokens_in_order(kernels: Kernels, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    reads = draw_reads(COUNT, QUERIES, WIDTH, dtype, shape=shape)
    flat = replace(
        reads,
        own=[source.reshape(-1, WIDTH) for source in reads.own],
        grads=[grad.reshape(-1, WIDTH) for grad in reads.grads],
    )
    with kernels():
        for ours, expected in zip(results(reads), results(flat), strict=True):
            assert torch.equal(ours.reshape(expected.shape), expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (2, 0, 3), (0, 0)])
@each_kernel
def test_no_tokens(kernels: Kernels, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    reads = with_running(draw_reads(COUNT, QUERIES, WIDTH, dtype, shape=shape))
    with kernels():
        mixed, maximum, total = reads.mix(wide=False)
        grads, grad_folded = reads.mix_backward(with_deltas=True)
    assert {tuple(one.shape) for one in (*mixed, *grads)} == {(*shape, WIDTH)}
    assert maximum.shape == total.shape == (QUERIES, 0)
    assert torch.equal(grad_folded, torch.zeros_like(grad_folded))


GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {**LAYOUTS, **EXPANDED}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", GRADIENTS)
def test_gradients_that_come_in_from_autograd(layout: str, dtype: torch.dtype) -> None:
    leaves = [source.requires_grad_() for source in draw_reads(COUNT, 1, WIDTH, dtype, shape=SHAPE).own]
    inputs = [*leaves, *(vector.requires_grad_() for vector in draw_vectors(WIDTH, dtype))]
    incoming = GRADIENTS[layout](signed((*SHAPE, WIDTH), dtype, seed=9))
    with compiled_operators():
        mixed = attn_res(inputs[:COUNT], *inputs[COUNT:])
        ours = torch.autograd.grad(mixed, inputs, incoming, retain_graph=True)
        assert_same_bits(ours, torch.autograd.grad(mixed, inputs, incoming.contiguous()))
