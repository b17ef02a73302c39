"""The standard residual: every output added with weight 1."""

from dataclasses import dataclass
from typing import final

from jaxtyping import Float
from torch import Tensor

from attention_residuals.streams.base import Residual, State, Stream, StreamShape


@final
@dataclass(frozen=True)
class Additive(Residual):
    """h_l = h_1 + sum of all earlier outputs."""

    def _build(self, shape: StreamShape) -> "AdditiveStream":
        return AdditiveStream(shape)


@final
class AdditiveStream(Stream):
    """State: `(h,)`."""

    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        return (embedding,)

    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        return state[0]

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        return (state[0] + output,)

    def finish(self, state: State) -> Float[Tensor, "*tokens width"]:
        return state[0]

    def carried(self, state: State) -> Float[Tensor, "*tokens width"]:
        return state[0]

    def describe(self) -> str:
        return f"standard residual over {self.shape.sublayers} sublayers"
