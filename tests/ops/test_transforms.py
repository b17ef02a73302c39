"""Reads under the function transforms of torch: `grad` works, as often as autograd does; what does not says so."""

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import attn_res, attn_res_partial, merge, normalise

from .support import DTYPES, assert_rounded_once, draw_sources, draw_vectors, size

COUNT, SHAPE, WIDTH = 4, (2, 3), 8


def read(*inputs: Tensor) -> Tensor:
    return attn_res(inputs[:COUNT], *inputs[COUNT:], gain=1.5)


def read_without_key_weight(*inputs: Tensor) -> Tensor:
    return attn_res(inputs[:COUNT], inputs[COUNT])


def read_in_parts(*inputs: Tensor) -> Tensor:
    vectors = [vector.unsqueeze(0) for vector in inputs[COUNT:]]
    parts = [attn_res_partial(inputs[a:b], *vectors) for a, b in ((0, 1), (1, COUNT))]
    return normalise(merge(*parts), inputs[0].dtype)


READS = [read, read_without_key_weight, read_in_parts]


def draw(dtype: torch.dtype) -> list[Tensor]:
    return [*draw_sources(COUNT, SHAPE, WIDTH, dtype), *draw_vectors(WIDTH, dtype)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("function", READS)
def test_grad_is_that_of_autograd(function, dtype: torch.dtype) -> None:
    inputs = draw(dtype)
    used = len(inputs) - (function is read_without_key_weight)

    def loss(*inputs: Tensor) -> Tensor:
        return function(*inputs).to(torch.promote_types(dtype, torch.float32)).square().sum()

    ours, value = torch.func.grad_and_value(loss, argnums=tuple(range(used)))(*inputs)
    leaves = [tensor.clone().requires_grad_() for tensor in inputs[:used]]
    expected = loss(*leaves, *inputs[used:])
    grads = torch.autograd.grad(expected, leaves)
    # Of the narrow types the mixture is rounded first, so that two orders of summation may end a rounding apart.
    scale = size([expected, *grads]) * torch.finfo(dtype).eps / torch.finfo(expected.dtype).eps
    assert_rounded_once(value, expected.detach().double(), scale)
    for one, grad in zip(ours, grads, strict=True):
        assert one.dtype == grad.dtype
        assert_rounded_once(one, grad.double(), scale)


@pytest.mark.parametrize("function", READS)
def test_a_second_derivative_is_refused(function) -> None:
    inputs = draw(torch.float64)

    def slope(*inputs: Tensor) -> Tensor:
        return torch.func.grad(lambda first: function(first, *inputs[1:]).square().sum())(inputs[0]).sum()

    for argnum in (0, 1, COUNT):
        with pytest.raises(RuntimeError, match="a second derivative through it is not implemented"):
            torch.func.grad(slope, argnums=argnum)(*inputs)


# Forward mode meets a deprecation inside PyTorch itself.
@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("function", READS)
def test_transforms_that_do_not_pass_say_so(function) -> None:
    inputs = draw(torch.float64)
    with pytest.raises(RuntimeError, match="vmap"):
        torch.func.vmap(function, in_dims=(0,) * COUNT + (None,) * 2)(*inputs)
    with pytest.raises(RuntimeError, match="jvp"):
        torch.func.jvp(function, tuple(inputs), tuple(torch.ones_like(tensor) for tensor in inputs))
