"""Reads in ordinary torch operations, for schemes that the operator does not know: slower, with autograd's backward.

Sources are `[..., D]` tensors, never stacked; logits and weights are `[N, ..., H]`, with H heads, in the compute type.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.ops import compute_dtype


def inverse_rms(x: Float[Tensor, "*tokens features"], eps: float) -> Float[Tensor, "*tokens 1"]:
    """One over the root mean square of each token, in the compute type."""
    return (x.to(compute_dtype(x.dtype)).square().mean(-1, keepdim=True) + eps).rsqrt()


def logits(
    keys: Sequence[Float[Tensor, "*tokens features"]],
    query: Float[Tensor, "*query_tokens features"],
    key_weight: Float[Tensor, "features"] | None,
    *,
    key_eps: float,
    heads: int = 1,
) -> Float[Tensor, "sources *tokens heads"]:
    """Inner products of the keys with a query, which may differ between tokens, head by head.

    `key_weight` and `key_eps` are those of the RMSNorm on the keys; without a weight the keys stay raw.
    """
    kind = compute_dtype(keys[0].dtype)
    folded = query.to(kind) if key_weight is None else query.to(kind) * key_weight.to(kind)
    found = []
    for key in keys:
        products = (key.to(kind) * folded).unflatten(-1, (heads, -1)).sum(-1)
        found.append(products if key_weight is None else products * inverse_rms(key, key_eps))
    return torch.stack(found)


def weighted_sum(
    values: Sequence[Float[Tensor, "*tokens width"]], weights: Float[Tensor, "sources *tokens heads"], gain: float
) -> Float[Tensor, "*tokens width"]:
    """`gain` times the weighted sum of the values, each head a part of the width of its own; in the values' type."""
    heads, total = weights.shape[-1], None
    for value, weight in zip(values, weights.unbind(), strict=True):
        part = value.to(weights.dtype).unflatten(-1, (heads, -1)) * (gain * weight).unsqueeze(-1)
        total = part if total is None else total + part
    assert total is not None
    return total.flatten(-2).to(values[0].dtype)
