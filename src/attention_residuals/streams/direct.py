"""Attention Residuals, one read at a time."""

from collections.abc import Sequence
from typing import final

from jaxtyping import Float
from torch import Tensor

from attention_residuals.streams.base import State
from attention_residuals.streams.depth import CutStream


class OneByOneStream(CutStream):
    """State: the tuple of sources itself. What a read does with them is the business of `_attend`."""

    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        return (embedding,)

    def sources(self, state: State) -> tuple[Tensor, ...]:
        return state

    def unpack(self, tensors: Sequence[Float[Tensor, "*tokens width"]], i: int) -> State:
        return tuple(tensors)

    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        assert len(state) == self.reads.partition.sources(i), f"state holds {len(state)} sources, not those of {i}"
        return state[0] if i == 0 else self._attend(state, str(i))

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        return self._extend(state, i, output)


@final
class DirectStream(OneByOneStream):
    """Every read is one call of the operator."""
