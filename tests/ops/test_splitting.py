"""Mixtures in two tensors, rounded and rest: what they tell of the numbers, and that gradients need no more."""

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import Group, operators
from attention_residuals.ops.splitting import STEPS, join, split

from .groups import DirectGroup, Open, draw_inputs, eager
from .in_two import (
    check_extend_in_two,
    check_mix_in_two,
    check_norm_in_two,
    check_offsets_in_two,
    check_tiny_in_two,
)
from .support import Kernels, each_kernel, plain_operators, signed

NARROW = (torch.bfloat16, torch.float16)
each_narrow = pytest.mark.parametrize("dtype", NARROW, ids=str)


@each_narrow
def test_they_tell_sixteen_bits_and_more(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    spread = 30.0 if dtype == torch.bfloat16 else 2.0
    values = torch.randn(10_000, generator=generator) * torch.exp(spread * torch.randn(10_000, generator=generator) / 3)
    rounded, rest = split(values, dtype)
    assert torch.equal(rounded, values.to(dtype))
    assert rest.dtype == torch.int8 and rest.abs().max() == STEPS
    allowed = torch.finfo(dtype).eps / (4 * STEPS) * values.abs().clamp_min(torch.finfo(dtype).tiny)
    assert ((join(rounded, rest) - values).abs() <= 1.01 * allowed).all()


@each_narrow
def test_numbers_of_the_narrow_type_are_told_exactly(dtype: torch.dtype) -> None:
    """All there are."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    values = values[values.isfinite()].float()
    rounded, rest = split(values, dtype)
    assert not rest.any()
    assert torch.equal(join(rounded, rest), values)


@each_narrow
def test_numbers_that_are_not_finite(dtype: torch.dtype) -> None:
    beyond = [3.4e38] if dtype == torch.bfloat16 else [7e4, -7e4]
    rounded, rest = split(torch.tensor([float("nan"), float("inf"), -float("inf"), *beyond]), dtype)
    assert torch.equal(rounded[1:3].float(), torch.tensor([float("inf"), -float("inf")]))
    assert not join(rounded, rest).isfinite().any()


@each_narrow
@pytest.mark.parametrize("width", [1, 3, 33, 64])
@each_kernel
def test_operators_take_and_give_them(kernels: Kernels, width: int, dtype: torch.dtype) -> None:
    with kernels():
        check_tiny_in_two(dtype)
        check_mix_in_two(3, 2, (2, 3), width, dtype)
        check_offsets_in_two(3, 3, (2, 3), width, dtype)
        check_norm_in_two((2, 3), width, dtype)
        for count in (0, 1, 4):
            check_extend_in_two(count, (2, 3), width, dtype)


def sharp_reads(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """Four reads of a group of Full; their logits are in the hundreds."""
    common, outputs, queries, key_weights = inputs[:3], inputs[3:-2], inputs[-2], inputs[-1]
    group = open_group(common, queries, torch.ones_like(key_weights))
    results, local = [group.read(0, (), 1.0)], []
    for r, output in enumerate(outputs[:-1], 1):
        group, source = group.publish(output)
        local.append(source)
        results.append(group.read(r, local, 1.0))
    return results


def worst_gradient(dtype: torch.dtype) -> float:
    """Of a source, relative to the norm of the exact one."""
    inputs = draw_inputs(dtype)
    inputs[-2] = (400 * inputs[-2]).detach().requires_grad_()
    exact = [one.detach().double().requires_grad_() for one in inputs]
    sources = slice(0, len(inputs) - 3)  # the last output is not read
    ours, expected = sharp_reads(eager, inputs), sharp_reads(DirectGroup, exact)
    incoming = [signed(one.shape, dtype, 4001 + n) for n, one in enumerate(ours)]
    grads = torch.autograd.grad(ours, inputs[sources], incoming)
    references = torch.autograd.grad(expected, exact[sources], [one.double() for one in incoming])
    return max(
        ((grad - reference).norm() / reference.norm()).item() for grad, reference in zip(grads, references, strict=True)
    )


@each_narrow
def test_gradients_where_the_softmax_is_sharp(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Right to a rounding; from rounded mixtures they would be far off."""

    def forget(rounded: Tensor, rest: Tensor) -> Tensor:
        return rounded.float()

    rounding = torch.finfo(dtype).eps / 2
    with plain_operators():
        assert worst_gradient(dtype) < rounding
        monkeypatch.setattr(operators, "join", forget)
        assert worst_gradient(dtype) > 4 * rounding


def saved_beside(group: Group, r: int, source: Tensor, known: list[Tensor]) -> int:
    """Bytes that read `r` of `source` saves for its backward, besides `known` tensors and its result."""
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = group.read(r, (source,), 1.0)
    owned = {one.untyped_storage().data_ptr() for one in (*known, source, result)}
    sizes = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in saved}
    return sum(size for storage, size in sizes.items() if storage not in owned)


@each_narrow
def test_a_read_keeps_a_byte_a_number_beside_its_result(dtype: torch.dtype) -> None:
    inputs = draw_inputs(dtype)
    common, outputs, queries, key_weights = inputs[:3], inputs[3:-2], inputs[-2], inputs[-1]
    group, total = eager(common, queries, key_weights), None
    for r, output in enumerate(outputs):
        group, total = group.publish(output, total)
        statistics = 2 * 4 * output[..., 0].numel()
        assert saved_beside(group, r, total, inputs) <= output.numel() + 2 * len(outputs) * statistics
