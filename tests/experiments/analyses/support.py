"""Models with depth queries that look somewhere, windows for them, and a stream that is no weighted sum."""

from collections.abc import Sequence
from typing import final

import torch.nn.functional as F
from torch import Tensor

from attention_residuals import Decoder, Residual
from attention_residuals.streams import State, Stream
from tests.streams.support import VOCABULARY, draw, randomise_depth, small_decoder

LAYERS = 3


def decoder(residual: Residual) -> Decoder:
    """Three layers in float64."""
    model = small_decoder(residual, LAYERS)
    randomise_depth(model)
    return model


def windows(count: int = 3, tokens: int = 7) -> Tensor:
    """`[count, tokens + 1]`."""
    return (draw(count, tokens + 1, seed=5).abs() * 1000).long() % VOCABULARY


@final
class NormedStream(Stream):
    """Post-norm without weights: its mixture is a norm of a sum, which no weights for all features give."""

    claims = False

    def start(self, embedding: Tensor) -> State:
        return (embedding,)

    def mixture(self, state: State, i: int) -> Tensor:
        return state[0]

    def write(self, state: State, i: int, output: Tensor) -> State:
        return (F.rms_norm(state[0] + output, (self.shape.width,)),)

    def finish(self, state: State) -> Tensor:
        return state[0]

    def carried(self, state: State) -> Tensor:
        return state[0]

    def mixing(self, outputs: Sequence[Tensor]) -> Tensor | None:
        if not self.claims:
            return None
        ones = outputs[0].new_ones(len(outputs), len(outputs)).tril()
        return ones[:, :, None, None].expand(-1, -1, *outputs[0].shape[:-1])

    def describe(self) -> str:
        return "norm of the sum"
