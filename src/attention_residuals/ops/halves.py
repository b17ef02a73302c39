"""Numbers of float32 in half the bytes: float16 times a power of two a token.

The parts that a first phase hands on beside bfloat16 or float16. As bfloat16 they would keep 8 bits, float16 keeps 11,
and the power of two keeps its range.
"""

import torch
from torch import Tensor

from attention_residuals.ops.loops import rows

_EXPONENT = 0x7F800000
"""The bits of the exponent in float32."""


def to_half(values: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 numbers `[..., D]`, D >= 1, as float16 `[..., D]` and its powers of two `[T]`, in float32.

    The largest number of a token comes to lie between 2^14 and 2^15, if it is between 2^-60 and 2^64. Numbers below
    2^-28 of it, or below 2^-88, lose digits, and above 2^66 they are infinite.
    """
    largest = rows(values).abs().amax(-1)
    power = (largest.view(torch.int32) & _EXPONENT).view(torch.float32).clamp(2.0**-60, 2.0**64)
    scale = power * 2.0**-14
    return (rows(values) / scale.unsqueeze(-1)).to(torch.float16).view(values.shape), scale


def from_half(half: Tensor, scale: Tensor) -> Tensor:
    """The float32 numbers `[..., D]` that float16 ones are, times a number a token `[T]`."""
    return (rows(half) * scale.reshape(-1, 1)).view(half.shape)
