"""Delta Attention Residuals: the standard residual stream, and to each read a depth attention over its increments.

Source: Luo, Cai and Hu, arXiv 2605.18855, and its code (github.com/wdlctc/delta-attention-residuals-code, function
`delta_attn_res`).
"""

from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.ops import attn_res
from attention_residuals.streams.base import Residual, State, StreamShape
from attention_residuals.streams.blocks import BlockSize, Sublayers, partition
from attention_residuals.streams.checks import require_block, require_eps
from attention_residuals.streams.depth import AttnResStream, DepthReads, ReadScale


@final
@dataclass(frozen=True)
class DeltaAttnRes(Residual):
    """`h = x + sum_i a_i v_i` with `a = softmax_i <w, g * RMSNorm(v_i)>`, and `x` the plain sum of all so far.

    The v_i are the embedding and the outputs so far (or block sums), and a null source of zeros whose share of the
    weight adds nothing. What is read goes to the sublayer alone; the head sees `x`. Sublayer 0 reads the embedding, as
    in the source. With zero queries the attention gives x over the number of sources, null included, so a read is the
    standard residual up to a factor that its pre-norm forgets: pretrained networks keep their function.

    The source's null vector may learn, for pretrained networks, and training from scratch goes without one. Here it is
    zero: a learned one would add a part that is no output's, and the scheme would have no depth mixing matrix. In its
    block form the source attends to closed blocks alone; here the partial sum is a source too, as in `AttnRes`, so
    that the sources sum to x at every read, which is what makes the start exact.

    Args:
        block: length of a block with its unit; `Sublayers(1)`, the default, attends to single outputs.
        null_source: whether there is one.
        key_eps: eps of the RMSNorm on the keys.

    Raises:
        InputError: a block without a unit, or an eps below 0.
    """

    block: BlockSize = field(default_factory=lambda: Sublayers(1))
    null_source: bool = True
    key_eps: float = 1e-6

    def __post_init__(self) -> None:
        require_block(self.block)
        require_eps(self, "key_eps")

    def _build(self, shape: StreamShape) -> "DeltaStream":
        cut = partition(self.block, shape.sublayers)
        reads = DepthReads(cut, ReadScale.MEAN, output_read=False, key_eps=self.key_eps)
        return DeltaStream(reads, shape, null_source=self.null_source)


@final
class DeltaStream(AttnResStream):
    """State: `(x, sources)`. Its weights are those of the sources; what the null source takes is missing from them."""

    def __init__(self, reads: DepthReads, shape: StreamShape, *, null_source: bool):
        super().__init__(reads, shape)
        self.null_source = null_source

    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        return (embedding, (embedding,))

    def sources(self, state: State) -> tuple[Tensor, ...]:
        return state[1]

    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        x, sources = state
        assert len(sources) == self.reads.partition.sources(i), f"state holds {len(sources)} sources, not those of {i}"
        return x if i == 0 else x + self._attend(sources, str(i))

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        x, sources = state
        return (x + output.to(x.dtype), self._extend(sources, i, output))

    def finish(self, state: State) -> Float[Tensor, "*tokens width"]:
        return state[0]

    def carried(self, state: State) -> Float[Tensor, "*tokens width"]:
        return state[0]

    def describe(self) -> str:
        null = "with" if self.null_source else "without"
        return f"Delta AttnRes {self.reads.partition.describe()}, {null} a null source"

    def _weights(self, sources: tuple[Tensor, ...], key: str) -> Tensor:
        query, norm = self.queries[key], self.key_norms[key]
        weights = attn_res(self._with_null(sources), query, norm, eps=self.reads.key_eps, return_weights=True)[1]
        return weights[: len(sources)]

    def _weights_with_gain(self, state: State, i: int) -> Tensor:
        """The stream has all sources once; the attention adds its weights to that."""
        weights = self.weights(state, i)
        return 1 + weights if str(i) in self.read_keys else torch.ones_like(weights)

    def _attend(self, sources: tuple[Tensor, ...], key: str) -> Tensor:
        return attn_res(self._with_null(sources), self.queries[key], self.key_norms[key], eps=self.reads.key_eps)

    def _with_null(self, sources: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (*sources, torch.zeros_like(sources[0])) if self.null_source else sources
