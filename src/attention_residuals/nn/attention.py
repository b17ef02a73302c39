"""Causal self-attention with grouped queries: one sublayer, tensor in, tensor out."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attention_residuals.errors import InputError, is_count
from attention_residuals.nn.attend import attend
from attention_residuals.nn.context import Context, TokenMixer
from attention_residuals.nn.output import OutputLinear
from attention_residuals.nn.rope import rotate, rotation
from attention_residuals.nn.window import attend_window


class Attention(TokenMixer):
    """Grouped-query causal attention with RoPE; `[B, T, width] -> [B, T, width]`, the input already normed.

    Args:
        width: D of the stream.
        heads, kv_heads: query heads, and key and value heads; the first is a multiple of the second.
        head_dim: width of a head, even.
        rope_theta: base of the rotary angles.
        qk_norm: RMSNorm with a learned weight on the queries and keys of each head, before the rotation.
        norm_eps: its eps.
        window: tokens that a token sees, itself among them; None: all up to its own. With a window the layer keeps of
            earlier tokens a state of `window - 1` keys and values instead of all of them, so a context's cache needs
            `state` and `store`, as for recurrent sublayers, and padding is what its `valid` says. Without a cache its
            `mask` counts, cut to the window. See `nn.window`.

    Raises:
        InputError: heads that `kv_heads` do not divide, an odd `head_dim`, a window below 1.
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
        window: int | None = None,
    ):
        super().__init__()
        require_heads(heads, kv_heads, head_dim)
        require_window(window)
        self.head_dim, self.rope_theta, self.groups = head_dim, rope_theta, heads // kv_heads
        self.window = window
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
        key = rotate(self.key_norm(key), context.rotation)
        if self.window is None:
            key, value = context.extend(key, value)
            attended = attend(query, key, value, context.mask)
        else:
            attended = attend_window(query, key, value, self.window, context)
        return self.output(attended.transpose(1, 2).flatten(-2))

    def _heads(self, x: Float[Tensor, "batch time features"]) -> Float[Tensor, "batch heads time head"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


def require_heads(heads: int, kv_heads: int, head_dim: int) -> None:
    """Refuse heads that cannot share keys, or cannot be turned.

    Raises:
        InputError: it names the numbers.
    """
    if heads % kv_heads:
        raise InputError(f"{heads} query heads cannot share {kv_heads} key heads; take a multiple of kv_heads")
    if head_dim % 2:
        raise InputError(f"head_dim is {head_dim}; rotary positions need an even head width")


def require_window(window: int | None) -> None:
    """Refuse a window without a token.

    Raises:
        InputError: it names the window.
    """
    if window is not None and not is_count(window):
        raise InputError(f"window is {window}; it must be a whole number of tokens of at least 1, or None for all")
