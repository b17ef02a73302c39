"""Numbers of float32 in three bytes: rounded to a narrow type, and in a byte more what the rounding lost.

A mixture is rounded for whoever reads it, but its gradient needs it better than that: an offset of the softmax
gradient from the rounded one is wrong by more than the gradient where the softmax is sharp. The two tensors tell it to
2^-16 (2^-19 beside float16), with a quarter less to move and to keep than float32.
"""

import torch
from torch import Tensor

STEPS = 127
"""Of the byte, on either side, for half the distance to the next number of the narrow type."""

_EXPONENT = 0x7F800000
"""The bits of the exponent in float32."""


def split(values: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Float32 numbers, rounded to `dtype`, float16 or bfloat16; and what is missing to them, in int8."""
    rounded = values.to(dtype)
    steps = (values - rounded) / _powers(rounded) * (2 * STEPS / torch.finfo(dtype).eps)
    return rounded, steps.round().nan_to_num(0.0, 0.0, 0.0).to(torch.int8)


def join(rounded: Tensor, rest: Tensor) -> Tensor:
    """The float32 numbers that were split; NaN for one whose rounding is not finite."""
    step = torch.finfo(rounded.dtype).eps / (2 * STEPS)
    return rounded + rest * step * _powers(rounded)


def _powers(rounded: Tensor) -> Tensor:
    """In float32 the power of two at or below each number, but none below those of a normal one."""
    powers = (rounded.float().view(torch.int32) & _EXPONENT).view(torch.float32)
    return powers.clamp_min(torch.finfo(rounded.dtype).tiny)
