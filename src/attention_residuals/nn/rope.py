"""Rotary position embedding (RoFormer, arXiv 2104.09864), with the halves of a head rotated against each other."""

import torch
from jaxtyping import Float
from torch import Tensor


def rotate(heads: Float[Tensor, "*batch time head"], theta: float) -> Float[Tensor, "*batch time head"]:
    """Rotate `[..., T, head_dim]` by its positions 0..T-1; `head_dim` is even.

    The angles are made on the fly, in float32 at least: a buffer would be left empty by a build on the meta device.
    """
    time, width = heads.shape[-2:]
    half = width // 2
    dtype = torch.promote_types(heads.dtype, torch.float32)
    exponent = torch.arange(half, device=heads.device, dtype=dtype) / half
    position = torch.arange(time, device=heads.device, dtype=dtype)
    angle = position.unsqueeze(-1) * theta**-exponent
    cos, sin = angle.cos().to(heads.dtype), angle.sin().to(heads.dtype)
    first, second = heads[..., :half], heads[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
