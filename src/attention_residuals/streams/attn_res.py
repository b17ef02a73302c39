"""Attention Residuals: softmax attention over depth. Full and Block are one class; a block of one sublayer is Full."""

import math
from dataclasses import dataclass, field
from typing import final

from attention_residuals.errors import InputError
from attention_residuals.streams.base import Residual, StreamShape
from attention_residuals.streams.blocks import BlockSize, Sublayers, partition
from attention_residuals.streams.depth import AttnResStream, DepthReads, ReadScale
from attention_residuals.streams.direct import DirectStream
from attention_residuals.streams.two_phase import TwoPhaseStream


@final
@dataclass(frozen=True)
class AttnRes(Residual):
    """Attention Residuals (arXiv 2603.15031, section 3).

    Args:
        block: length of a block with its unit: `Sublayers(1)` (Full, the default), `Layers(3)`, `Blocks(8)`.
        scale: see `ReadScale`; the paper's mean is the default, for training from scratch.
        output_read: the head reads all sources through a query of its own. Without it the head sees their plain sum.
        key_eps: eps of the RMSNorm on the keys.
        two_phase: run the paper's Algorithm 1: all queries of a block over the closed sources at once, then merge the
            open block read by read. False reads one by one: the same result, slower, for comparisons.
    """

    block: BlockSize = field(default_factory=lambda: Sublayers(1))
    scale: ReadScale = ReadScale.MEAN
    output_read: bool = True
    key_eps: float = 1e-6
    two_phase: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.block, BlockSize):
            raise InputError(
                f"block is {self.block!r}, a number without a unit; write Sublayers(n), Layers(n) or Blocks(n)"
            )
        if not isinstance(self.scale, ReadScale):
            raise InputError(f"scale is {self.scale!r}; choose ReadScale.MEAN or ReadScale.SUM")
        if not (math.isfinite(self.key_eps) and self.key_eps >= 0):
            raise InputError(f"key_eps is {self.key_eps}; it must be a number of at least 0, for example 1e-6")

    def _build(self, shape: StreamShape) -> AttnResStream:
        cut = partition(self.block, shape.sublayers)
        reads = DepthReads(cut, self.scale, self.output_read, self.key_eps)
        return TwoPhaseStream(reads, shape) if self.two_phase else DirectStream(reads, shape)
