"""Rotary position embedding (RoFormer, arXiv 2104.09864), with the halves of a head rotated against each other."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Rotation(NamedTuple):
    """By what the heads of some tokens are turned: cosine and sine `[..., T, head_dim / 2]` of their angles."""

    cos: Tensor
    sin: Tensor


def rotation(positions: Int[Tensor, "*batch time"], head_dim: int, theta: float, dtype: torch.dtype) -> Rotation:
    """The rotation of tokens at `positions`, for heads of `head_dim` features (even); in `dtype`, float32 at least.

    The angles are made on the fly: a buffer would be left empty by a build on the meta device.
    """
    half = head_dim // 2
    dtype = torch.promote_types(dtype, torch.float32)
    exponent = torch.arange(half, device=positions.device, dtype=dtype) / half
    angle = positions.to(dtype).unsqueeze(-1) * theta**-exponent
    return Rotation(angle.cos(), angle.sin())


def rotate(heads: Float[Tensor, "*batch time head"], by: Rotation) -> Float[Tensor, "*batch time head"]:
    """`[..., T, head_dim]` turned by the rotation of its tokens."""
    half = heads.shape[-1] // 2
    cos, sin = by.cos.to(heads.dtype), by.sin.to(heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
