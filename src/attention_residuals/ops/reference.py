"""The read as the paper writes it: the float64 oracle. Never optimised, and used by tests only."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def attn_res_reference(
    sources: Sequence[Float[Tensor, "*tokens width"]],
    query: Float[Tensor, "width"],
    key_weight: Float[Tensor, "width"] | None = None,
    *,
    eps: float = 1e-6,
) -> tuple[Float[Tensor, "*tokens width"], Float[Tensor, "sources *tokens"]]:
    """Eq. 2-4 of arXiv 2603.15031 in float64: keys are RMS-normalised sources, values are the raw ones.

    Returns the mixture `[..., D]` and its weights `[N, ...]`, both float64; differentiable by plain autograd.
    """
    values = torch.stack([source.double() for source in sources])
    keys = values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps)
    if key_weight is not None:
        keys = keys * key_weight.double()
    weights = (keys @ query.double()).softmax(0)
    return (weights.unsqueeze(-1) * values).sum(0), weights
