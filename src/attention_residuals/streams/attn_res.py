"""Attention Residuals: softmax attention over depth. Full and Block are one class; a block of one sublayer is Full."""

from dataclasses import dataclass, field
from typing import final

from attention_residuals.errors import InputError, is_count, require_positive
from attention_residuals.streams.base import Residual, StreamShape
from attention_residuals.streams.blocks import BlockSize, Sublayers, partition
from attention_residuals.streams.checks import require_block, require_eps, require_factor
from attention_residuals.streams.depth import AttnResStream, DepthReads, ReadScale
from attention_residuals.streams.direct import DirectStream
from attention_residuals.streams.two_phase import TwoPhaseStream
from attention_residuals.streams.variants import Query, Variant, VariantStream, Weighting


@final
@dataclass(frozen=True)
class AttnRes(Residual):
    """Attention Residuals (arXiv 2603.15031, section 3), and the variants of its Table 4.

    With its defaults it is the paper's method. The last seven fields are variants, which combine with each other, with
    any block and with both scales unless that makes no sense; they run read by read in plain torch, so they are slower.
    Every one starts as the method does, with equal weights.

    Args:
        block: length of a block with its unit: `Sublayers(1)` (Full, the default), `Layers(3)`, `Blocks(8)`.
        scale: see `ReadScale`; the paper's mean is the default, for training from scratch.
        output_read: the head reads all sources through a query of its own. Without it the head sees their plain sum.
        key_eps: eps of the RMSNorm on the keys.
        two_phase: run the paper's Algorithm 1: all queries of a block over the closed sources at once, then merge the
            open block read by read. False reads one by one: the same result, slower, for comparisons. Variants always
            read one by one.
        query, weighting: see `Query` and `Weighting`, which also say what the paper leaves open.
        key_norm: keys are RMS-normed. Without it sources with large values dominate the logits.
        window_sublayers: a read sees the embedding and so many of the latest sublayer outputs, rather than all; the
            paper's "SWA" is 8. A block must be one sublayer then. The read of the head has the window too.
        heads: so many channel groups of equal width attend separately, each with its part of the query and of the key.
            Also known as multi-head Attention Residuals (arXiv 2607.27230). Whether the key norm is one for all
            heads is open in the paper; chosen is one, as in the method and in the code of arXiv 2607.27230.
        normed_sources: sources are RMS-normed once, without a weight, with `key_eps`, and are then keys and values
            both; `key_norm` and its weight are not there. The first sublayer still reads the raw embedding. As in
            Inkling 2 (`Inkling2BlockAttentionResidual` of transformers), together with the next.
        logit_scale: a factor on the logits; Inkling 2 has width^-1/2, the paper none.

    Raises:
        InputError: a block without a unit, a value of the wrong kind, or fields that contradict each other. On
            building: heads that do not divide the width.
    """

    block: BlockSize = field(default_factory=lambda: Sublayers(1))
    scale: ReadScale = ReadScale.MEAN
    output_read: bool = True
    key_eps: float = 1e-6
    two_phase: bool = True
    query: Query = Query.LEARNED
    weighting: Weighting = Weighting.SOFTMAX
    key_norm: bool = True
    window_sublayers: int | None = None
    heads: int = 1
    normed_sources: bool = False
    logit_scale: float = 1.0

    def __post_init__(self) -> None:
        require_block(self.block)
        if not isinstance(self.scale, ReadScale):
            raise InputError(f"scale is {self.scale!r}; choose ReadScale.MEAN or ReadScale.SUM")
        require_eps(self, "key_eps")
        self._require_sensible_variant()

    def _require_sensible_variant(self) -> None:
        for name, kind in (("query", Query), ("weighting", Weighting)):
            if not isinstance(getattr(self, name), kind):
                choices = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
                raise InputError(f"{name} is {getattr(self, name)!r}; choose one of {choices}")
        require_positive(self, "heads")
        if self.window_sublayers is not None and not is_count(self.window_sublayers):
            raise InputError(
                f"window_sublayers is {self.window_sublayers!r}; it must be a whole number of at least 1, or None"
            )
        if self.window_sublayers is not None and self.block != Sublayers(1):
            raise InputError(
                f"window_sublayers is {self.window_sublayers} and block is {self.block}: a window counts single "
                "outputs, which blocks sum up; take block=Sublayers(1), or leave window_sublayers out"
            )
        if self.query is Query.NONE and not self.key_norm:
            raise InputError(
                "query is Query.NONE and key_norm is False: without a query there are no keys to norm; "
                "leave key_norm out"
            )
        if self.normed_sources and not self.key_norm:
            raise InputError(
                "normed_sources is True and key_norm is False: keys are the normed sources; leave key_norm out"
            )
        require_factor(self, "logit_scale")

    def _build(self, shape: StreamShape) -> AttnResStream:
        cut = partition(self.block, shape.sublayers)
        reads = DepthReads(cut, self.scale, self.output_read, self.key_eps)
        variant = Variant(
            self.query,
            self.weighting,
            self.key_norm,
            self.window_sublayers,
            self.heads,
            self.normed_sources,
            self.logit_scale,
        )
        if not variant.is_the_method:
            return VariantStream(reads, variant, shape)
        return TwoPhaseStream(reads, shape) if self.two_phase else DirectStream(reads, shape)
