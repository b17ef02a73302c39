"""The operator for reads that keep nothing is the general one, to the bit."""

import pytest
import torch
from torch import Tensor

from attention_residuals.ops import compute_dtype

from .support import Kernels, each_kernel, signed

R = 3


def operands(shape: tuple[int, ...], width: int, dtype: torch.dtype, strided: bool) -> tuple[Tensor, ...]:
    """Output, partial sum, a common source, folded queries and the weight of a norm."""
    wide = compute_dtype(dtype)
    tensors = [signed((*shape, 2 * width if strided else width), dtype, seed) for seed in (1, 2, 3)]
    if strided:
        tensors = [tensor[..., ::2] for tensor in tensors]
    return (*tensors, signed((R, width), wide, 4), signed((width,), wide, 5))


@each_kernel
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize(("shape", "width"), [((1,), 16), ((2, 5), 7), ((70,), 33), ((), 8), ((0,), 4)])
def test_it_is_the_general_one(
    kernels: Kernels, dtype: torch.dtype, strided: bool, shape: tuple[int, ...], width: int
) -> None:
    output, partial_sum, common, folded, norm = operands(shape, width, dtype, strided)
    with kernels():
        ops = torch.ops.attention_residuals
        values, maxima, totals = ops.mix([common], folded, 1e-6, 1.0, True)
        kept = [value.clone() for value in values]
        for r in range(R):
            normed, source = ops.advance(
                output, partial_sum, folded, r, values[r], maxima, totals, norm, 1e-6, 1e-5, 1.5
            )
            part = [values[r], maxima[r : r + 1], totals[r : r + 1]]
            _, _, _, expected, total = ops.extend(
                [output], partial_sum, folded[r : r + 1], part, norm, 1e-6, 1e-5, 1.5, dtype
            )
            assert torch.equal(normed, expected) and torch.equal(source, total)
            assert normed.dtype == source.dtype == dtype and source.shape == (*shape, width)
        assert all(map(torch.equal, values, kept)), "operands are left as they were"


def test_schema_and_shapes() -> None:
    output, partial_sum, common, folded, norm = operands((2, 5), 8, torch.float32, strided=False)
    ops = torch.ops.attention_residuals
    values, maxima, totals = ops.mix([common], folded, 1e-6, 1.0, True)
    inputs = (output, partial_sum, folded, 1, values[1], maxima, totals, norm, 1e-6, 1e-5, 1.5)
    torch.library.opcheck(ops.advance.default, inputs, test_utils=("test_schema", "test_faketensor"))
