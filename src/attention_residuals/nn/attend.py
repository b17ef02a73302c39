"""Softmax attention of grouped query heads, in pieces where a mask would be large: a pure function of tensors."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

MASK_ENTRIES = 2**20
"""Entries of a mask that are used at a time: 4 MiB once they are numbers, however long the text."""


def attend(
    query: Float[Tensor, "batch heads time head"],
    key: Float[Tensor, "batch kv_heads keys head"],
    value: Float[Tensor, "batch kv_heads keys value"],
    mask: Bool[Tensor, "_ 1 time keys"] | None,
    scale: float | None = None,
) -> Float[Tensor, "batch heads time value"]:
    """Attention of grouped query heads; `mask` as in `Context`. Scores are times `scale`, by default head^-1/2."""
    tokens, keys = query.shape[2], key.shape[2]
    if tokens == 1 and query.shape[1] > key.shape[1]:
        # The heads of a group look at the same keys as so many tokens would: no key is repeated for them.
        grouped = query.view(query.shape[0], key.shape[1], -1, query.shape[-1])
        attended = F.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scale)
        return attended.view(*query.shape[:-1], value.shape[-1])
    if mask is None and tokens in (1, keys):
        return _attend(query, key, value, None, scale, is_causal=tokens > 1)
    rows = max(1, MASK_ENTRIES // (keys * (1 if mask is None else len(mask))))
    if mask is not None and rows >= tokens:
        return _attend(query, key, value, mask, scale)
    pieces = []
    for begin in range(0, tokens, rows):
        end = min(begin + rows, tokens)
        seen = keys if mask is not None else keys - tokens + end
        here = mask[:, :, begin:end] if mask is not None else _causal(end - begin, seen, query.device)
        pieces.append(_attend(query[:, :, begin:end], key[:, :, :seen], value[:, :, :seen], here, scale))
    return torch.cat(pieces, dim=2)


def _causal(tokens: int, keys: int, device: torch.device) -> Bool[Tensor, "time keys"]:
    """The mask of the last `tokens` of `keys` tokens."""
    return torch.ones(tokens, keys, dtype=torch.bool, device=device).tril(keys - tokens)


def _attend(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float | None, is_causal: bool = False
) -> Tensor:
    grouped = query.shape[1] > key.shape[1]
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=is_causal, scale=scale, enable_gqa=grouped
    )
