"""What a recurrent sublayer forgets: parameters that start from values of their own, as published."""

import math
from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

DECAY_RATES = (1.0, 16.0)
DECAY_STEPS = (1e-3, 1e-1)
"""Between which the decay of a fresh model lies: rate times step is how much a token forgets, in log."""


class StateDecay(nn.Module, ABC):
    """Owns parameters that are neither matrices nor norms, and says what they start from.

    `A_log [heads]` and `dt_bias` have the names that they have in every implementation.
    """

    @staticmethod
    @abstractmethod
    def start(key: str, uniform: Tensor) -> Tensor:
        """The values that the parameter `key` starts from, for numbers between 0 and 1."""


def start_decay(key: str, uniform: Tensor) -> Tensor:
    """Those of `A_log` and `dt_bias`: as published, rates are uniform and steps are uniform in log."""
    if key == "A_log":
        low, high = DECAY_RATES
        return (low + (high - low) * uniform).log()
    assert key == "dt_bias"
    low, high = (math.log(step) for step in DECAY_STEPS)
    step = (low + (high - low) * uniform).exp()
    return step + (-torch.expm1(-step)).log()  # softplus of it is the step


class DecayGate(StateDecay):
    """The log of how much of each channel of a head is kept: `-exp(A_log) softplus(up(down(x)) + dt_bias)`.

    `dt_bias` is `[heads * head_dim]`.
    """

    def __init__(self, width: int, heads: int, head_dim: int):
        super().__init__()
        self.down = nn.Linear(width, head_dim, bias=False)
        self.up = nn.Linear(head_dim, heads * head_dim, bias=False)
        self.A_log = nn.Parameter(self.start("A_log", torch.rand(heads)))
        self.dt_bias = nn.Parameter(self.start("dt_bias", torch.rand(heads * head_dim)))

    def forward(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch time heads head"]:
        """At most 0, in float32 at least."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        step = F.softplus(self.up(self.down(x)).to(dtype) + self.dt_bias.to(dtype))
        return -self.A_log.to(dtype).exp().unsqueeze(-1) * step.unflatten(-1, (len(self.A_log), -1))

    @staticmethod
    def start(key: str, uniform: Tensor) -> Tensor:
        """As `start_decay`."""
        return start_decay(key, uniform)


class HeadDecay(StateDecay):
    """Step and decay of whole heads, and how much of its value a token passes on itself: all parameters `[heads]`.

    The step is `softplus(raw + dt_bias)`, the log of what is kept `-exp(A_log) step`; `D` starts at 1.
    """

    def __init__(self, heads: int):
        super().__init__()
        self.A_log = nn.Parameter(self.start("A_log", torch.rand(heads)))
        self.dt_bias = nn.Parameter(self.start("dt_bias", torch.rand(heads)))
        self.D = nn.Parameter(self.start("D", torch.rand(heads)))

    def forward(
        self, raw: Float[Tensor, "batch time heads"]
    ) -> tuple[Float[Tensor, "batch time heads"], Float[Tensor, "batch time heads"]]:
        """Steps, and logs of what is kept, at most 0; in float32 at least."""
        dtype = torch.promote_types(raw.dtype, torch.float32)
        step = F.softplus(raw.to(dtype) + self.dt_bias.to(dtype))
        return step, -self.A_log.to(dtype).exp() * step

    @staticmethod
    def start(key: str, uniform: Tensor) -> Tensor:
        """As `start_decay`; `D` is 1."""
        return torch.ones_like(uniform) if key == "D" else start_decay(key, uniform)
