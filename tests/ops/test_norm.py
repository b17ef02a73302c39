"""The pre-norm behind a read, forward and backward, kernels and plain, against float64."""

from dataclasses import replace
from math import prod

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from .reads import OPS, assert_mixtures, assert_statistics, draw_reads
from .support import DTYPES, Kernels, assert_rounded_once, compute_type, each_kernel, signed, size

WIDTHS = (1, 3, 16, 33, 64, 512, 1000)
NORM_EPS = 0.1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("local", [0, 1, 5])
@each_kernel
def test_the_norm_behind_a_read(kernels: Kernels, local: int, width: int, dtype: torch.dtype) -> None:
    """It is taken of the mixture before that is rounded."""
    reads = draw_reads(local, 1, width, dtype, others=3, shape=(2, 3))
    reads.gains[0] = -0.5
    weight = signed((width,), reads.compute, 1003)
    with kernels():
        mixed, maximum, total, normed = reads.normed(weight, NORM_EPS)
    assert_mixtures([mixed], reads, gain=-0.5)
    assert_statistics(maximum, total, reads)
    expected = F.rms_norm(-0.5 * reads.mixtures[0], (width,), weight.double(), NORM_EPS)
    assert normed.dtype == dtype and normed.is_contiguous()
    # Where the sources cancel, dividing by a small root enlarges what the mixture is off by.
    assert_rounded_once(normed, expected, max(size([expected]), NORM_EPS**-0.5), reads.compute)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@each_kernel
def test_a_sum_that_is_made_on_the_way(kernels: Kernels, width: int, dtype: torch.dtype) -> None:
    """It is rounded like the sum that it is, and then read as if it had been there."""
    reads = draw_reads(2, 1, width, dtype, others=3, shape=(2, 3))
    weight = signed((width,), reads.compute, 1003)
    one, other = reads.own
    with kernels():
        *results, source = reads.added(weight, NORM_EPS)
        assert torch.equal(source, one + other)
        assert source.dtype == dtype and source.is_contiguous()
        expected = replace(reads, own=[source]).normed(weight, NORM_EPS)
    for ours, reference in zip(results, expected, strict=True):
        assert torch.equal(ours, reference)


def draw(tokens: tuple[int, ...], width: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Incoming gradient, mixture and weight."""
    compute = compute_type(dtype)
    return signed((*tokens, width), dtype, 1), signed((*tokens, width), compute, 2), signed((width,), compute, 3)


def oracle(grad: Tensor, mixed: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    leaves = [mixed.double().requires_grad_(), weight.double().requires_grad_()]
    normed = F.rms_norm(leaves[0], weight.shape, leaves[1], NORM_EPS)
    grad_mixed, grad_weight = torch.autograd.grad(normed, leaves, grad.double())
    return grad_mixed, grad_weight


def assert_right(ours: tuple[Tensor, Tensor, Tensor], grad: Tensor, mixed: Tensor, weight: Tensor) -> None:
    grad_mixed, products, grad_weight = ours
    expected, expected_weight = oracle(grad, mixed, weight)
    assert grad_mixed.dtype == grad.dtype and grad_mixed.is_contiguous()
    # The inner product inside it sums `width` numbers of size 1, divided by `width`.
    assert_rounded_once(grad_mixed, expected, size([expected]), mixed.dtype)
    # Of the gradient as it was rounded, for that is the one that others go on from.
    inner = (grad_mixed.double() * mixed.double()).sum(-1).flatten()
    assert_rounded_once(products, inner, max(size([inner]), weight.numel() ** 0.5 * size([expected])))
    scale = prod(grad.shape[:-1]) ** 0.5
    assert_rounded_once(grad_weight, expected_weight, max(scale, size([expected_weight])), mixed.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("tokens", [(1,), (5, 2), (7, 131)])
@each_kernel
def test_the_gradients_of_a_norm(kernels: Kernels, tokens: tuple[int, ...], width: int, dtype: torch.dtype) -> None:
    inputs = draw(tokens, width, dtype)
    with kernels():
        assert_right(OPS.norm_backward(*inputs, NORM_EPS), *inputs)


@each_kernel
def test_any_layout(kernels: Kernels) -> None:
    grad, mixed, weight = draw((4, 6), 6, torch.float64)
    for one, other in [
        (grad.transpose(0, 1), mixed.transpose(0, 1).contiguous()),
        (grad, mixed.transpose(1, 2).contiguous().transpose(1, 2)),
        (grad[:1, :1].expand(4, 6, 6), mixed),
    ]:
        with kernels():
            assert_right(OPS.norm_backward(one, other, weight, NORM_EPS), one, other, weight)


@each_kernel
def test_no_tokens(kernels: Kernels) -> None:
    grad, mixed, weight = draw((0,), 6, torch.float32)
    with kernels():
        grad_mixed, products, grad_weight = OPS.norm_backward(grad, mixed, weight, NORM_EPS)
    assert grad_mixed.shape == (0, 6) and products.shape == (0,)
    assert torch.equal(grad_weight, torch.zeros(6))
