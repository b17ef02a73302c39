"""The standard residual: every output added with weight 1."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.streams.base import Boundary, Residual, State, Stream, StreamShape


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

    def boundary(self, i: int) -> Boundary:
        return Boundary(1, 0)

    def pack(self, state: State) -> tuple[Float[Tensor, "*tokens width"], ...]:
        return state

    def unpack(self, tensors: Sequence[Float[Tensor, "*tokens width"]], i: int) -> State:
        return tuple(tensors)

    def mixing(self, outputs: Sequence[Float[Tensor, "*tokens width"]]) -> Float[Tensor, "reads sources *tokens"]:
        ones = torch.ones(len(outputs), len(outputs), device=outputs[0].device, dtype=outputs[0].dtype).tril()
        return ones.view(*ones.shape, *(1 for _ in outputs[0].shape[:-1])).expand(*ones.shape, *outputs[0].shape[:-1])

    def describe(self) -> str:
        return f"standard residual over {self.shape.sublayers} sublayers"
