"""Parts in halves: what they tell of the numbers, and that gradients need no more."""

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import Group, PreNorm
from attention_residuals.ops.halves import from_half, to_half

from .groups import DirectGroup, Open, Program, draw_inputs, eager, split
from .in_halves import (
    check_exact_parts,
    check_extend_halves,
    check_mix_halves,
    check_offsets_elsewhere,
    check_offsets_halves,
    check_range_of_halves,
)
from .support import DTYPES, Kernels, each_kernel, plain_operators, signed

NARROW = (torch.bfloat16, torch.float16)
each_narrow = pytest.mark.parametrize("dtype", NARROW, ids=str)


def test_they_tell_eleven_bits() -> None:
    """Whatever their size, though not of those far below the largest of their token."""
    generator = torch.Generator().manual_seed(1)
    spread = torch.exp(12 * torch.randn(1000, 1, generator=generator).clamp(-3, 3))
    values = torch.randn(1000, 10, generator=generator) * spread
    half, scale = to_half(values)
    assert half.dtype == torch.float16 and scale.shape == (1000,)
    assert (scale.frexp().mantissa == 0.5).all()
    error = (from_half(half, scale) - values).abs()
    assert (error <= 2.0**-11 * values.abs() + 2.0**-39 * values.abs().amax(-1, keepdim=True)).all()


@each_narrow
def test_numbers_of_the_narrow_type_are_told_exactly(dtype: torch.dtype) -> None:
    """All there are whose token is of about their size, and that are not tiny."""
    values = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    values = values[values.isfinite() & (values.abs() > 2.0**-80) & (values.abs() < 2.0**60)].float()
    values = values[values.abs().sort().indices][: len(values) // 256 * 256].view(-1, 256)
    assert torch.equal(from_half(*to_half(values)), values)


def test_zeros_and_numbers_that_are_not_finite() -> None:
    values = torch.tensor([[0.0, 0.0], [float("inf"), 1.0], [float("nan"), 1.0], [-float("inf"), 0.0], [3.4e38, 1.0]])
    told = from_half(*to_half(values))
    assert not told[0].any()
    assert not told[1:, 0].isfinite().any()


@each_narrow
@pytest.mark.parametrize("width", [1, 3, 33, 64])
@each_kernel
def test_operators_take_and_give_them(kernels: Kernels, width: int, dtype: torch.dtype) -> None:
    with kernels():
        check_range_of_halves(dtype)
        check_mix_halves(3, 2, (2, 3), width, dtype)
        for queries in (1, 3):
            check_offsets_halves(3, queries, (2, 3), width, dtype)
        for count in (0, 1, 4):
            check_extend_halves(count, (2, 3), width, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 33])
@each_kernel
def test_deltas_of_sources_elsewhere(kernels: Kernels, width: int, dtype: torch.dtype) -> None:
    with kernels():
        for count, queries in [(1, 1), (3, 3)]:
            check_offsets_elsewhere(count, queries, (2, 3), width, dtype)


@pytest.mark.parametrize("width", [1, 33])
def test_a_part_that_is_not_rounded(width: int) -> None:
    for count, queries in [(1, 1), (3, 3)]:
        check_exact_parts(count, queries, width)


def sharp_full(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    """Four reads of a group of Full, of up to three local sources."""
    common, outputs, queries, key_weights = split(inputs)
    group = open_group(common, queries, torch.ones_like(key_weights))
    results, local = [group.read(0, (), 1.0)], []
    for r, output in enumerate(outputs[:-1], 1):
        group, source = group.publish(output)
        local.append(source)
        results.append(group.read(r, local, 1.0))
    return results


def sharp_block(open_group: Open, inputs: list[Tensor], norm: PreNorm | None = None) -> list[Tensor]:
    """Four reads of a block, whose local sources stand where partial sums would: those would be rounded."""
    common, outputs, queries, key_weights = split(inputs)
    group = open_group(common, queries, torch.ones_like(key_weights))
    results = [group.read(0, (), 1.0, norm)]
    for r, output in enumerate(outputs[:-1], 1):
        later, source = group.publish(output)
        results.append(later.read(r, (source,), 1.0, norm))
    return results


def sharp_normed_block(open_group: Open, inputs: list[Tensor]) -> list[Tensor]:
    return sharp_block(open_group, inputs, PreNorm(torch.ones_like(inputs[-1][0]), 1e-6))


SHARP = {"full": sharp_full, "block": sharp_block, "normed block": sharp_normed_block}


def worst_gradient(program: Program, dtype: torch.dtype, size: float = 400) -> float:
    """Of a source, relative to the norm of the exact one, where the logits are about of this size."""
    inputs = draw_inputs(dtype)
    inputs[-2] = (size * inputs[-2]).detach().requires_grad_()
    exact = [one.detach().double().requires_grad_() for one in inputs]
    sources = slice(0, len(inputs) - 3)  # the last output is not read
    ours, expected = program(eager, inputs), program(DirectGroup, exact)
    incoming = [signed(one.shape, dtype, 4001 + n) for n, one in enumerate(ours)]
    grads = torch.autograd.grad(ours, inputs[sources], incoming)
    references = torch.autograd.grad(expected, exact[sources], [one.double() for one in incoming])
    return max(
        ((grad - reference).norm() / reference.norm()).item() for grad, reference in zip(grads, references, strict=True)
    )


@each_narrow
@pytest.mark.parametrize("program", SHARP.values(), ids=SHARP.keys())
def test_gradients_where_the_softmax_is_sharp(program: Program, dtype: torch.dtype) -> None:
    """Right to a rounding."""
    with plain_operators():
        assert worst_gradient(program, dtype) < torch.finfo(dtype).eps / 2


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
def test_a_read_keeps_two_bytes_a_number_beside_its_result(dtype: torch.dtype) -> None:
    inputs = draw_inputs(dtype)
    common, outputs, queries, key_weights = split(inputs)
    group, total = eager(common, queries, key_weights), None
    for r, output in enumerate(outputs):
        group, total = group.publish(output, total)
        statistics = 3 * 4 * output[..., 0].numel()
        assert saved_beside(group, r, total, inputs) <= 2 * output.numel() + 2 * len(outputs) * statistics
