"""Attention Residuals in two phases (arXiv 2603.15031, Algorithm 1): the same reads, in another order of evaluation."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from attention_residuals.ops import Partial, attn_res_partial, merge, normalise
from attention_residuals.streams.base import State, StreamShape
from attention_residuals.streams.depth import AttnResStream, DepthReads

FULL_GROUP_SUBLAYERS = 8
"""Full AttnRes has no blocks to batch by, so this many consecutive reads share a first phase."""


@final
class TwoPhaseStream(AttnResStream):
    """State: `(sources, part)`, `part` being the first phase of the current group of reads, or `()`.

    A group is one block, or several consecutive reads of Full. Phase 1, when a group begins: all its queries over the
    sources that exist by then. Phase 2, at each read: the few sources made since, merged in.
    """

    def __init__(self, reads: DepthReads, shape: StreamShape):
        super().__init__(reads, shape)
        block = reads.partition.block
        self.group_sublayers = FULL_GROUP_SUBLAYERS if block == 1 else block

    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        return self._begin_group((embedding,), 0)

    def sources(self, state: State) -> tuple[Tensor, ...]:
        return state[0]

    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        sources, part = state
        assert len(sources) == self.reads.partition.sources(i), f"state holds {len(sources)} sources, not those of {i}"
        if i == 0:
            return sources[0]
        begin = self._group_begin(i)
        read = Partial(*part).query(i - self._first_query(begin))
        made_since = sources[self.reads.partition.sources(begin) :]
        if made_since:
            queries, norms = self.queries.stacked([i]), self.key_norms.stacked([i])
            read = merge(read, attn_res_partial(made_since, queries, norms, eps=self.reads.key_eps))
        return normalise(read, sources[0].dtype, gain=self.gain(len(sources))).squeeze(0)

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        sources, part = state
        extended = self._extend(sources, i, output)
        if self._group_begin(i + 1) == i + 1:
            return self._begin_group(extended, i + 1)
        return (extended, part)

    def _begin_group(self, sources: tuple[Tensor, ...], begin: int) -> State:
        """Run the first phase for the reads `begin .. begin + group - 1`."""
        reads = range(self._first_query(begin), min(begin + self.group_sublayers, self.shape.sublayers))
        if not reads:
            return (sources, ())
        queries, norms = self.queries.stacked(reads), self.key_norms.stacked(reads)
        return (sources, tuple(attn_res_partial(sources, queries, norms, eps=self.reads.key_eps)))

    def _group_begin(self, i: int) -> int:
        return i - i % self.group_sublayers

    @staticmethod
    def _first_query(begin: int) -> int:
        """The first read of a group that has a query: sublayer 0 has none."""
        return max(begin, 1)
