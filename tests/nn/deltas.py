"""Inputs of the delta rule, and a count of what operations make."""

from collections.abc import Sequence
from enum import Enum

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Decay(Enum):
    """How much is forgotten."""

    NONE = "none"
    STRONG = "strong"
    WIDE = "wide"
    RESETS = "resets"


def log_decays(kind: Decay, *sizes: int) -> Tensor:
    """`WIDE`: from e^-12 to e^4, 7 orders of magnitude; `RESETS`: now and then all is forgotten at once."""
    if kind is Decay.NONE:
        return torch.zeros(*sizes, dtype=torch.float64)
    if kind is Decay.STRONG:
        return torch.full(sizes, -50.0, dtype=torch.float64)
    if kind is Decay.WIDE:
        return -torch.empty(*sizes, dtype=torch.float64).uniform_(-12, 4).exp()
    return torch.where(torch.rand(*sizes) < 0.1, -torch.inf, -0.01).double()


def problem(
    tokens: int,
    decay: Decay = Decay.WIDE,
    *,
    batch: int = 2,
    heads: int = 3,
    key: int = 7,
    value: int = 5,
    beta: float | None = None,
) -> list[Tensor]:
    """query, key, value, log_decay, beta, state in float64; `beta` of all tokens, or anything in [0, 1]."""
    torch.manual_seed(tokens)
    sizes = (batch, tokens, heads)
    unit = [F.normalize(torch.randn(*sizes, key, dtype=torch.float64), dim=-1) for _ in range(2)]
    values = torch.randn(*sizes, value, dtype=torch.float64)
    drawn = torch.rand(*sizes, dtype=torch.float64)
    betas = drawn if beta is None else torch.full_like(drawn, beta)
    state = torch.randn(batch, heads, key, value, dtype=torch.float64)
    return [*unit, values, log_decays(decay, *sizes, key), betas, state]


def cast(inputs: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """All in another type."""
    return [x.to(dtype) for x in inputs]


class Work(TorchDispatchMode):
    """Counts the numbers that operations write, views left out."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.numbers += sum(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result
