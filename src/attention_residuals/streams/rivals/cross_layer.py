"""What streams share that mix all earlier outputs anew at every read."""

from abc import abstractmethod

from jaxtyping import Float
from torch import Tensor

from attention_residuals.streams.base import State, Stream


class CrossLayerStream(Stream):
    """State: the embedding and all outputs so far, in order.

    Sublayer 0 reads the embedding as it is, so that read has no parameters. The head has a read of its own.
    """

    OUTPUT = "output"

    def sources_of_reads(self) -> dict[str, int]:
        """How many sources each read with parameters has, by its key: the number of its sublayer, or `output`."""
        reads = {str(i): i + 1 for i in range(1, self.shape.sublayers)}
        return {**reads, self.OUTPUT: self.shape.sublayers + 1}

    @abstractmethod
    def mix(self, sources: tuple[Tensor, ...], key: str) -> Float[Tensor, "*tokens width"]:
        """What the read `key` makes of its sources, each `[..., D]`."""

    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        return (embedding,)

    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        assert len(state) == i + 1, f"state holds {len(state)} sources, not those of {i}"
        return self.mix(state, str(i)) if i else state[0]

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        assert len(state) == i + 1, f"state holds {len(state)} sources, not those of {i}"
        return (*state, output.to(state[0].dtype))

    def finish(self, state: State) -> Float[Tensor, "*tokens width"]:
        return self.mix(state, self.OUTPUT)

    def carried(self, state: State) -> Float[Tensor, "*tokens width"]:
        return state[-1]
