"""Kimi Delta Attention (Kimi Linear, arXiv 2510.26692): linear attention by the delta rule, one sublayer."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attention_residuals.errors import InputError, is_count
from attention_residuals.nn.convolution import ShortConvolution
from attention_residuals.nn.decay import DecayGate
from attention_residuals.nn.delta import delta_rule
from attention_residuals.nn.output import OutputLinear
from attention_residuals.nn.recurrent import RecurrentMixer, is_inside

LENGTH_EPS = 1e-6
"""Added to the squared length of queries and keys before the root."""


class DeltaState(NamedTuple):
    """What is kept of all tokens before, whatever their number.

    `query`, `key`, `value`: the last inputs `[B, kernel - 1, heads * head_dim]` of the three convolutions. `memory`:
    the state `[B, heads, head_dim, head_dim]` of the delta rule, in float32 at least.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    memory: Tensor


class KimiDeltaAttention(RecurrentMixer):
    """Linear attention with a state of fixed size; `[B, T, width] -> [B, T, width]`, the input already normed.

    Queries, keys and values go through a short convolution, queries and keys are brought to length 1, and what the
    delta rule reads is normed head by head and gated. Positions come from decay and convolutions alone. Cost grows with
    the tokens, and decoding costs the same after any number of them.

    In a published checkpoint the parameters are `{q,k,v}_proj`, `{q,k,v}_conv1d`, `f_a_proj` and `f_b_proj` (decay down
    and up), `A_log [1, 1, heads, 1]`, `dt_bias`, `b_proj` (beta), `g_a_proj` and `g_b_proj` (gate down and up),
    `o_norm` and `o_proj`; all others have our shapes.

    Args:
        width: D of the stream.
        heads, head_dim: of queries, keys and values alike; their product need not be the width.
        kernel: tokens that a convolution sees.
        norm_eps: eps of the RMSNorm on the outputs of the heads.

    Raises:
        InputError: a size below 1.
    """

    def __init__(self, width: int, heads: int, head_dim: int, *, kernel: int = 4, norm_eps: float = 1e-6):
        super().__init__()
        for name, count in (("width", width), ("heads", heads), ("head_dim", head_dim)):
            if not is_count(count):
                raise InputError(f"{name} is {count}; it must be a whole number of at least 1")
        self.heads, self.head_dim = heads, head_dim
        features = heads * head_dim
        self.query = nn.Linear(width, features, bias=False)
        self.key = nn.Linear(width, features, bias=False)
        self.value = nn.Linear(width, features, bias=False)
        self.query_convolution = ShortConvolution(features, kernel)
        self.key_convolution = ShortConvolution(features, kernel)
        self.value_convolution = ShortConvolution(features, kernel)
        self.decay = DecayGate(width, heads, head_dim)
        self.beta = nn.Linear(width, heads, bias=False)
        self.gate_down = nn.Linear(width, head_dim, bias=False)
        self.gate_up = nn.Linear(head_dim, features, bias=False)
        self.output_norm = nn.RMSNorm(head_dim, norm_eps)
        self.output = OutputLinear(features, width, bias=False)

    def mix(
        self,
        x: Float[Tensor, "batch time width"],
        past: tuple[Tensor, ...] | None,
        count: Int[Tensor, "batch"] | None = None,
    ) -> tuple[Float[Tensor, "batch time width"], DeltaState]:
        """As in `RecurrentMixer`."""
        inside = is_inside(x, count)
        before = (None, None, None, None) if past is None else DeltaState(*past)
        query, last_query = self.query_convolution(self.query(x), before[0], count)
        key, last_key = self.key_convolution(self.key(x), before[1], count)
        value, last_value = self.value_convolution(self.value(x), before[2], count)
        log_decay, beta = without_trace(self.decay(x), self.beta(x).sigmoid(), inside)
        found, memory = delta_rule(
            unit_length(self._heads(query)) * self.head_dim**-0.5,
            unit_length(self._heads(key)),
            self._heads(value),
            log_decay,
            beta,
            before[3],
        )
        gated = self.output_norm(found) * self._heads(self.gate_up(self.gate_down(x))).sigmoid()
        return self.output(gated.flatten(-2)), DeltaState(last_query, last_key, last_value, memory)

    def _heads(self, x: Float[Tensor, "batch time features"]) -> Float[Tensor, "batch time heads head"]:
        return x.unflatten(-1, (self.heads, self.head_dim))


def unit_length(x: Float[Tensor, "*tokens head"]) -> Float[Tensor, "*tokens head"]:
    """Vectors over their length, in float32 at least."""
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return x / (x.square().sum(-1, keepdim=True) + LENGTH_EPS).sqrt()


def without_trace(
    log_decay: Float[Tensor, "batch time heads head"],
    beta: Float[Tensor, "batch time heads"],
    inside: Bool[Tensor, "batch time"] | None,
) -> tuple[Float[Tensor, "batch time heads head"], Float[Tensor, "batch time heads"]]:
    """Both with 0 where there is padding: it then neither decays the state nor changes it."""
    if inside is None:
        return log_decay, beta
    padding = ~inside.unsqueeze(-1)
    return log_decay.masked_fill(padding.unsqueeze(-1), 0), beta.masked_fill(padding, 0)
