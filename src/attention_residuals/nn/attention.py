"""Causal self-attention with grouped queries: one sublayer, tensor in, tensor out."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attention_residuals.errors import InputError
from attention_residuals.nn.context import Context, TokenMixer
from attention_residuals.nn.output import OutputLinear
from attention_residuals.nn.rope import rotate, rotation


class Attention(TokenMixer):
    """Grouped-query causal attention with RoPE; `[B, T, width] -> [B, T, width]`, the input already normed.

    Args:
        width: D of the stream.
        heads, kv_heads: query heads, and key and value heads; the first is a multiple of the second.
        head_dim: width of a head, even.
        rope_theta: base of the rotary angles.
        qk_norm: RMSNorm with a learned weight on the queries and keys of each head, before the rotation.
        norm_eps: its eps.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        rope_theta: float = 10_000.0,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
    ):
        super().__init__()
        if heads % kv_heads:
            raise InputError(f"{heads} query heads cannot share {kv_heads} key heads; take a multiple of kv_heads")
        if head_dim % 2:
            raise InputError(f"head_dim is {head_dim}; rotary positions need an even head width")
        self.head_dim, self.rope_theta, self.groups = head_dim, rope_theta, heads // kv_heads
        self.query = nn.Linear(width, heads * head_dim, bias=False)
        self.key = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.value = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.output = OutputLinear(heads * head_dim, width, bias=False)
        self.query_norm = nn.RMSNorm(head_dim, norm_eps) if qk_norm else nn.Identity()
        self.key_norm = nn.RMSNorm(head_dim, norm_eps) if qk_norm else nn.Identity()

    def forward(
        self, x: Float[Tensor, "batch time width"], context: Context | None = None
    ) -> Float[Tensor, "batch time width"]:
        query, key, value = self._heads(self.query(x)), self._heads(self.key(x)), self._heads(self.value(x))
        if context is None:
            positions = torch.arange(x.shape[1], device=x.device)
            context = Context(rotation(positions, self.head_dim, self.rope_theta, x.dtype))
        assert context.rotation is not None
        query = rotate(self.query_norm(query), context.rotation)
        key, value = context.extend(rotate(self.key_norm(key), context.rotation), value)
        return self.output(attend(query, key, value, context.mask).transpose(1, 2).flatten(-2))

    def _heads(self, x: Float[Tensor, "batch time features"]) -> Float[Tensor, "batch heads time head"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


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
