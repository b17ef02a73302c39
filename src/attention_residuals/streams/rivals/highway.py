"""Highway: a learned gate chooses between what is carried and what is new.

    h_(l+1) = (1 - g_l) h_l + g_l f_l(h_l)        g_l = sigmoid(w_l . h_l + b_l)

From Srivastava et al., arXiv 1505.00387, section 2 (carry gate tied to the transform gate). The gate is a scalar per
token, as in the depth mixing matrix of arXiv 2603.15031, section 6.2, and not a vector per channel as in the source: a
read is then a weighted mean of the embedding and all outputs.

Start: the source gives the bias a negative value so that a network begins by carrying (section 2.2; its examples are
-1 and -3, "e.g."); here -2, a gate of 0.12. The weight starts at zero, where the source draws it at random. Outputs
start at the size of their input, without the 1/sqrt(L) of a plain sum: the gate is what scales them.

Choices: the gate sees the raw running tensor, as in the source; f_l includes its own pre-norm, as for every scheme.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.streams.base import Residual, State, StreamShape
from attention_residuals.streams.parameters import DepthCoefficients, DepthMatrices
from attention_residuals.streams.rivals.running import RunningStream


@final
@dataclass(frozen=True)
class Highway(Residual):
    """A gate per token and sublayer; formula and choices at the head of this file.

    Args:
        gate_bias: what the biases of the gates start from.

    Raises:
        InputError: a bias that is not finite.
    """

    gate_bias: float = -2.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.gate_bias):
            raise InputError(f"gate_bias is {self.gate_bias}; it must be a finite number, for example -2")

    def _build(self, shape: StreamShape) -> "HighwayStream":
        return HighwayStream(self, shape)


@final
class HighwayStream(RunningStream):
    """State: `(h,)`."""

    def __init__(self, config: Highway, shape: StreamShape):
        super().__init__(shape)
        sublayers = range(shape.sublayers)
        self.gate_weights = DepthMatrices({i: partial(torch.zeros, 1, shape.width) for i in sublayers})
        self.gate_biases = DepthCoefficients({i: partial(torch.full, (1,), config.gate_bias) for i in sublayers})

    @property
    def output_scale(self) -> float:
        return 1.0

    def gate(self, h: Float[Tensor, "*tokens width"], i: int) -> Float[Tensor, "*tokens 1"]:
        """The weight of the new output of sublayer `i`."""
        return F.linear(h, self.gate_weights[str(i)], self.gate_biases[str(i)]).sigmoid().to(h.dtype)

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        h = state[0]
        return (torch.lerp(h, output.to(h.dtype), self.gate(h, i)),)

    def mixing(self, outputs: Sequence[Float[Tensor, "*tokens width"]]) -> Float[Tensor, "reads sources *tokens"]:
        state = self.start(outputs[0])
        shares = [torch.ones_like(outputs[0][..., 0]), *(torch.zeros_like(v[..., 0]) for v in outputs[1:])]
        rows = [torch.stack(shares)]
        for i in range(self.shape.sublayers):
            gate = self.gate(state[0], i)[..., 0]
            shares = [(1 - gate) * share for share in shares]
            shares[i + 1] = gate
            rows.append(torch.stack(shares))
            state = self.write(state, i, outputs[i + 1])
        return torch.stack(rows)

    def describe(self) -> str:
        return f"Highway, a scalar gate a token, over {self.shape.sublayers} sublayers"
