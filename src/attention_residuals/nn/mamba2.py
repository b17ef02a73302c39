"""Mamba-2 (arXiv 2405.21060): a gated linear attention with one decay a head, one sublayer."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attention_residuals.errors import InputError, require_positive
from attention_residuals.nn.convolution import ShortConvolution
from attention_residuals.nn.decay import HeadDecay
from attention_residuals.nn.output import OutputLinear
from attention_residuals.nn.recurrent import RecurrentMixer, is_inside
from attention_residuals.nn.state_space import state_space


class Mamba2State(NamedTuple):
    """What is kept of all tokens before, whatever their number.

    `inputs`: the last inputs `[B, kernel - 1, heads * head_dim + 2 * groups * state_dim]` of the convolution. `memory`:
    the state `[B, heads, state_dim, head_dim]`, in float32 at least.
    """

    inputs: Tensor
    memory: Tensor


class GroupedRMSNorm(nn.RMSNorm):
    """RMSNorm of each of `groups` equal parts of the last dimension, with one learned weight for each feature."""

    def __init__(self, features: int, groups: int, eps: float):
        super().__init__(features, eps)
        self.groups = groups

    def forward(self, x: Float[Tensor, "*tokens features"]) -> Float[Tensor, "*tokens features"]:
        parts = x.unflatten(-1, (self.groups, -1))
        return F.rms_norm(parts, parts.shape[-1:], None, self.eps).flatten(-2) * self.weight


class Mamba2(RecurrentMixer):
    """Linear attention with a state of fixed size; `[B, T, width] -> [B, T, width]`, the input already normed.

    Values (x), keys (B) and queries (C) go through one short convolution; a learned step says how much a token adds and
    how much of the state a head forgets. What is read, and the token's own value times `D`, is gated, normed group by
    group, and projected. Positions come from decay and convolution alone; cost grows with the tokens, and decoding
    costs the same after any number of them. Plain torch on every device.

    In a published checkpoint `in_proj` holds `gate`, `value`, `key`, `query` and `step`, one below the other, `conv1d`
    is `convolution`, `A_log`, `dt_bias` and `D` are those of `decay`, `norm` is `output_norm`, `out_proj` is `output`.

    Args:
        width: D of the stream.
        heads, head_dim: of the values; their product need not be the width. The authors take twice the width.
        state_dim: features of a key and a query.
        groups: of heads that share keys and queries; they divide the heads.
        kernel: tokens that the convolution sees.
        norm_eps: eps of the RMSNorm on the outputs.

    Raises:
        InputError: a size below 1, or heads that the groups do not divide.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        state_dim: int,
        *,
        groups: int = 1,
        kernel: int = 4,
        norm_eps: float = 1e-6,
    ):
        super().__init__()
        self.width, self.heads, self.head_dim, self.state_dim, self.groups = width, heads, head_dim, state_dim, groups
        require_positive(self, "width", "heads", "head_dim", "state_dim", "groups")
        require_groups(heads, groups)
        features, shared = heads * head_dim, groups * state_dim
        self.gate = nn.Linear(width, features, bias=False)
        self.value = nn.Linear(width, features, bias=False)
        self.key = nn.Linear(width, shared, bias=False)
        self.query = nn.Linear(width, shared, bias=False)
        self.step = nn.Linear(width, heads, bias=False)
        self.convolution = ShortConvolution(features + 2 * shared, kernel, bias=True)
        self.decay = HeadDecay(heads)
        self.output_norm = GroupedRMSNorm(features, groups, norm_eps)
        self.output = OutputLinear(features, width, bias=False)

    def mix(
        self,
        x: Float[Tensor, "batch time width"],
        past: tuple[Tensor, ...] | None,
        count: Int[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch time width"], Mamba2State]:
        """As in `RecurrentMixer`."""
        before = (None, None) if past is None else Mamba2State(*past)
        inputs = torch.cat((self.value(x), self.key(x), self.query(x)), dim=-1)
        mixed, last = self.convolution(inputs, before[0], count)
        shared = self.groups * self.state_dim
        value, key, query = mixed.split((self.heads * self.head_dim, shared, shared), dim=-1)
        value = value.unflatten(-1, (self.heads, self.head_dim))
        step, log_decay = self.decay(self.step(x))
        if (inside := is_inside(x, count)) is not None:
            padding = ~inside.unsqueeze(-1)  # it neither adds to the state nor lets it decay
            step, log_decay = step.masked_fill(padding, 0), log_decay.masked_fill(padding, 0)
        added = value.to(step.dtype) * step.unsqueeze(-1)
        found, memory = state_space(self._for_heads(query), self._for_heads(key), added, log_decay, before[1])
        found = found + self.decay.D.to(step.dtype).unsqueeze(-1) * value
        gated = found.flatten(-2).to(x.dtype) * F.silu(self.gate(x))
        return self.output(self.output_norm(gated)), Mamba2State(last, memory)

    def _for_heads(self, x: Float[Tensor, "batch time features"]) -> Float[Tensor, "batch time heads state"]:
        return x.unflatten(-1, (self.groups, self.state_dim)).repeat_interleave(self.heads // self.groups, dim=2)


def require_groups(heads: int, groups: int) -> None:
    """Refuse heads that cannot share keys and queries in equal groups.

    Raises:
        InputError: it names both numbers.
    """
    if heads % groups:
        raise InputError(f"{heads} heads cannot be {groups} groups of equal size; take a multiple of groups")
