"""RMS-Block Attention Residuals: a closed block is the sum of its outputs, each RMS-normed before it is added.

Source: the design note of github.com/kimmichtank/rms-block-attnres (docs/design.md, "RMS Block4"). A sum of raw outputs
points where its largest terms point, and no norm of the sum can undo that.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.streams.base import Residual, State, StreamShape
from attention_residuals.streams.blocks import BlockSize, Sublayers, partition
from attention_residuals.streams.checks import require_block, require_eps
from attention_residuals.streams.depth import AttnResStream, DepthReads, ReadScale
from attention_residuals.streams.scores import inverse_rms

DEFAULT_BLOCK_SUBLAYERS = 4
"""As in the source's experiments."""


@final
@dataclass(frozen=True)
class RmsBlockAttnRes(Residual):
    """Block AttnRes over `b = sum_i v_i / rms(v_i)` for closed blocks.

    The embedding and the partial sum of the open block stay raw, as in the source. Its blocks divide the network; where
    ours do not, the shorter last block never closes, so the head reads its raw sum. At the start the weights are equal,
    but a read is not the standard residual: closed blocks have lost their sizes.

    Args:
        block: length of a block with its unit.
        scale, output_read, key_eps: as in `AttnRes`.
        sum_eps: eps of the RMSNorm on what is added, which has no weight; the source's is 1e-6.

    Raises:
        InputError: a block without a unit, or an eps below 0.
    """

    block: BlockSize = field(default_factory=lambda: Sublayers(DEFAULT_BLOCK_SUBLAYERS))
    scale: ReadScale = ReadScale.MEAN
    output_read: bool = True
    key_eps: float = 1e-6
    sum_eps: float = 1e-6

    def __post_init__(self) -> None:
        require_block(self.block)
        require_eps(self, "key_eps", "sum_eps")

    def _build(self, shape: StreamShape) -> "RmsBlockStream":
        cut = partition(self.block, shape.sublayers)
        return RmsBlockStream(DepthReads(cut, self.scale, self.output_read, self.key_eps), self.sum_eps, shape)


@final
class RmsBlockStream(AttnResStream):
    """State: `(sources, normed)`; `normed` is `(sum,)` of the open block's normed outputs so far, `()` between blocks.

    `carried` is the newest source: the raw partial sum, or the sum of a block that has just closed.
    """

    def __init__(self, reads: DepthReads, sum_eps: float, shape: StreamShape):
        super().__init__(reads, shape)
        self.sum_eps = sum_eps

    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        return ((embedding,), ())

    def sources(self, state: State) -> tuple[Tensor, ...]:
        return state[0]

    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        sources = self.sources(state)
        assert len(sources) == self.reads.partition.sources(i), f"state holds {len(sources)} sources, not those of {i}"
        return sources[0] if i == 0 else self._attend(sources, str(i))

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        sources, normed = state
        output = output.to(sources[0].dtype)  # under autocast a sublayer may answer in a narrower type
        raw = self._extend(sources, i, output)
        term = (output * inverse_rms(output, self.sum_eps)).to(output.dtype)
        total = term if self.reads.partition.opens_block(i) else normed[0] + term
        if self._closes_block(i):
            return ((*raw[:-1], total), ())
        return (raw, (total,))

    def mixing(
        self, outputs: Sequence[Float[Tensor, "*tokens width"]]
    ) -> Float[Tensor, "reads sources *tokens"] | None:
        """As in `Stream`; an output of a closed block has the weight of its block over its own RMS."""
        shared = super().mixing(outputs)
        assert shared is not None
        rows = []
        for i, row in enumerate(shared):
            factors = [self._factor(output, v, read=i) for v, output in enumerate(outputs)]
            rows.append(row * torch.stack([factor.to(row.dtype) for factor in factors]))
        return torch.stack(rows)

    def describe(self) -> str:
        return f"RMS-{super().describe()}"

    def _factor(self, output: Tensor, v: int, *, read: int) -> Tensor:
        """What v_`v` is multiplied by on its way into its source, as read number `read` finds it: `[...]`."""
        factor = inverse_rms(output, self.sum_eps).squeeze(-1)
        block = self.reads.partition.block
        closed = v > 0 and (v - 1) // block < read // block
        return factor if closed else torch.ones_like(factor)

    def _closes_block(self, i: int) -> bool:
        return (i + 1) % self.reads.partition.block == 0
