"""Low-rank Attention Residuals: the last features of a source are its key, all of them its value.

Source: Su, arXiv 2607.09694, in its sliced form; the equation is that of github.com/jon123boss/fast-attnres
(docs/equation.md).
"""

from dataclasses import dataclass, field
from typing import final

from torch import Tensor

from attention_residuals.errors import InputError, require_positive
from attention_residuals.streams.base import Residual, StreamShape
from attention_residuals.streams.blocks import BlockSize, Sublayers, partition
from attention_residuals.streams.checks import require_block, require_eps
from attention_residuals.streams.depth import DepthReads, ReadScale
from attention_residuals.streams.direct import OneByOneStream
from attention_residuals.streams.scores import logits, weighted_sum


@final
@dataclass(frozen=True)
class LowRankAttnRes(Residual):
    """AttnRes with `a = softmax_i <w, g * RMSNorm(last R features of v_i)>`, where `w` and `g` are `[R]`.

    The source has no weight g; it is kept here, so that R = D is `AttnRes` to the last parameter and the rank is all
    that differs. The logits are not scaled. Queries start at zero, so a read starts as in `AttnRes`.

    Args:
        block, scale, output_read, key_eps: as in `AttnRes`.
        key_features: R. The source has 64 of 768; the default is 8 of the 64 of our 12-layer decoder.

    Raises:
        InputError: a block without a unit, an eps below 0, R below 1. On building: R above the width.
    """

    block: BlockSize = field(default_factory=lambda: Sublayers(1))
    scale: ReadScale = ReadScale.MEAN
    output_read: bool = True
    key_eps: float = 1e-6
    key_features: int = 8

    def __post_init__(self) -> None:
        require_block(self.block)
        require_eps(self, "key_eps")
        require_positive(self, "key_features")

    def _build(self, shape: StreamShape) -> "LowRankStream":
        if self.key_features > shape.width:
            raise InputError(
                f"key_features is {self.key_features} and the width {shape.width}; a key is a part of a source, so "
                f"choose at most {shape.width}"
            )
        cut = partition(self.block, shape.sublayers)
        return LowRankStream(DepthReads(cut, self.scale, self.output_read, self.key_eps), shape, self.key_features)


@final
class LowRankStream(OneByOneStream):
    """State: the tuple of sources."""

    def __init__(self, reads: DepthReads, shape: StreamShape, key_features: int):
        super().__init__(reads, shape, key_features=key_features)
        self.key_features = key_features

    def describe(self) -> str:
        return f"Low-rank {super().describe()}, keys of {self.key_features} features"

    def _weights(self, sources: tuple[Tensor, ...], key: str) -> Tensor:
        return self._weigh(sources, key).squeeze(-1)

    def _attend(self, sources: tuple[Tensor, ...], key: str) -> Tensor:
        return weighted_sum(sources, self._weigh(sources, key), self.gain(len(sources)))

    def _weigh(self, sources: tuple[Tensor, ...], key: str) -> Tensor:
        """`[N, ..., 1]`."""
        keys = [source[..., -self.key_features :] for source in sources]
        return logits(keys, self.queries[key], self.key_norms[key], key_eps=self.reads.key_eps).softmax(0)
