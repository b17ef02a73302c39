"""Rescaled residual: the running mean of the embedding and all outputs.

    h_(l+1) = l/(l+1) h_l + 1/(l+1) f_l(h_l)        l = 1, 2, ...; h_1 the embedding

A control without parameters, after notes by Z. Liu: the stream keeps its size instead of growing with depth. Counting
from l = 1 makes h_l the plain mean of its l sources, which is Full AttnRes with all queries at zero. Where every reader
begins with a norm it is also the standard residual up to the eps of that norm: runs of the two differ by no more than
what eps does, which makes it a check on the harness.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.streams.base import Residual, State, StreamShape
from attention_residuals.streams.rivals.mixing import fixed_mixing
from attention_residuals.streams.rivals.running import RunningStream


@final
@dataclass(frozen=True)
class Rescaled(Residual):
    """The running mean of all sources; formula at the head of this file."""

    def _build(self, shape: StreamShape) -> "RescaledStream":
        return RescaledStream(shape)


@final
class RescaledStream(RunningStream):
    """State: `(h,)`."""

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        h = state[0]
        return (torch.lerp(h, output.to(h.dtype), 1 / (i + 2)),)

    def mixing(self, outputs: Sequence[Float[Tensor, "*tokens width"]]) -> Float[Tensor, "reads sources *tokens"]:
        return fixed_mixing(self, outputs)

    def describe(self) -> str:
        return f"rescaled residual over {self.shape.sublayers} sublayers"
