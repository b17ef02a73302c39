"""Causal self-attention with grouped queries: one sublayer, tensor in, tensor out."""

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attention_residuals.errors import InputError
from attention_residuals.nn.output import OutputLinear
from attention_residuals.nn.rope import rotate


class Attention(nn.Module):
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

    def forward(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time width"]:
        query = rotate(self.query_norm(self._heads(self.query(x))), self.rope_theta)
        key = rotate(self.key_norm(self._heads(self.key(x))), self.rope_theta)
        value = self._heads(self.value(x))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=self.groups > 1)
        return self.output(mixed.transpose(1, 2).flatten(-2))

    def _heads(self, x: Float[Tensor, "batch time features"]) -> Float[Tensor, "batch heads time head"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
