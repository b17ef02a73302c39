"""Attention of one text to another (arXiv 1706.03762, section 3.2.3): one sublayer, tensor in, tensor out."""

from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from attention_residuals.errors import InputError, require_positive
from attention_residuals.nn.context import Context
from attention_residuals.nn.output import OutputLinear


@dataclass(frozen=True, eq=False)
class Memory:
    """What there is to look up: `features [B, S, width]`, already normed, such as those of an encoder.

    `valid [B, S]` is false where there is padding, and true at least once in every row. None: all are tokens.
    """

    features: Float[Tensor, "batch source width"]
    valid: Bool[Tensor, "batch source"] | None = None


class CrossAttention(nn.Module):
    """Every token looks at all of a memory; `[B, T, width] -> [B, T, width]`, the input already normed.

    It knows no positions: those are in the features of the memory.

    Args:
        width: D of the stream and of the memory.
        heads, kv_heads: query heads, and key and value heads; the first is a multiple of the second.
        head_dim: width of a head.

    Raises:
        InputError: a size below 1, or heads that `kv_heads` do not divide.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int):
        super().__init__()
        self.width, self.heads, self.kv_heads, self.head_dim = width, heads, kv_heads, head_dim
        require_positive(self, "width", "heads", "kv_heads", "head_dim")
        if heads % kv_heads:
            raise InputError(f"{heads} query heads cannot share {kv_heads} key heads; take a multiple of kv_heads")
        self.query = nn.Linear(width, heads * head_dim, bias=False)
        self.key = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.value = nn.Linear(width, kv_heads * head_dim, bias=False)
        self.output = OutputLinear(heads * head_dim, width, bias=False)

    def forward(
        self, x: Float[Tensor, "batch time width"], memory: Memory, context: Context | None = None
    ) -> Float[Tensor, "batch time width"]:
        """Of `context` the cache alone counts: keys and values of the memory are computed once, and kept as a state.

        Raises:
            InputError: a cache without `state` and `store`.
        """
        kept = None if context is None else context.state()
        key, value = self._looked_up(memory) if kept is None else kept
        if kept is None and context is not None:
            context.store((key, value))
        mask = None if memory.valid is None else memory.valid[:, None, None, :]
        grouped = self.heads > self.kv_heads
        found = F.scaled_dot_product_attention(self._heads(self.query(x)), key, value, mask, enable_gqa=grouped)
        return self.output(found.transpose(1, 2).flatten(-2))

    def _looked_up(self, memory: Memory) -> tuple[Tensor, Tensor]:
        return self._heads(self.key(memory.features)), self._heads(self.value(memory.features))

    def _heads(self, x: Float[Tensor, "batch time features"]) -> Float[Tensor, "batch heads time head"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
