"""What streams with a single running tensor share: only the update differs."""

from jaxtyping import Float
from torch import Tensor

from attention_residuals.streams.base import State, Stream


class RunningStream(Stream):
    """State: `(h,)`, which every sublayer reads and `write` replaces."""

    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        return (embedding,)

    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        return state[0]

    def finish(self, state: State) -> Float[Tensor, "*tokens width"]:
        return state[0]

    def carried(self, state: State) -> Float[Tensor, "*tokens width"]:
        return state[0]
