"""Attention Residuals in two phases (arXiv 2603.15031, Algorithm 1): the same reads, in another order of evaluation."""

from typing import final

from jaxtyping import Float
from torch import Tensor

from attention_residuals.ops import Ahead, PreNorm, open_group
from attention_residuals.streams.base import State, StreamShape
from attention_residuals.streams.depth import AttnResStream, DepthReads

FULL_GROUP_SUBLAYERS = 8
"""Full AttnRes has no blocks to batch by, so this many consecutive reads share a first phase."""


@final
class TwoPhaseStream(AttnResStream):
    """State: `(sources, group)`, `group` being that of the next read, or `()` after the last.

    A group is one block, or several consecutive reads of Full. When it opens, the first phase is due: all its queries
    over the sources that exist by then. Each of its reads goes on from there over the few sources made since. A group
    is a cache beside the sources: it can make again whatever it has handed out, so verbs may be repeated.
    """

    def __init__(self, reads: DepthReads, shape: StreamShape):
        super().__init__(reads, shape)
        block = reads.partition.block
        self.group_sublayers = FULL_GROUP_SUBLAYERS if block == 1 else block

    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        return self._open_group((embedding,), 0)

    def sources(self, state: State) -> tuple[Tensor, ...]:
        return state[0]

    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        return state[0][0] if i == 0 else self._read(state, i, None)

    def read(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        if i == 0:
            return super().read(state, i)
        return self._read(state, i, self._norm(i))

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        sources, group = state
        assert len(sources) == self.reads.partition.sources(i), f"state holds {len(sources)} sources, not those of {i}"
        if self._group_begin(i + 1) == i + 1 or i + 1 == self.shape.sublayers:
            return self._open_group(self._extend(sources, i, output), i + 1)
        output = output.to(sources[0].dtype)  # under autocast a sublayer may answer in a narrower type
        if self.reads.partition.opens_block(i):
            group, source = group.publish(output)
            return ((*sources, source), group)
        group, source = group.publish(output, sources[-1], Ahead(*self._number_and_gain(i + 1), self._norm(i + 1)))
        return ((*sources[:-1], source), group)

    def _read(self, state: State, i: int, norm: PreNorm | None) -> Tensor:
        sources, group = state
        assert len(sources) == self.reads.partition.sources(i), f"state holds {len(sources)} sources, not those of {i}"
        local = sources[self.reads.partition.sources(self._group_begin(i)) :]
        r, gain = self._number_and_gain(i)
        return group.read(r, local, gain, norm)

    def _number_and_gain(self, i: int) -> tuple[int, float]:
        """Of the read of sublayer `i` within its group."""
        return i - self._first_query(self._group_begin(i)), self.gain(self.reads.partition.sources(i))

    def _norm(self, i: int) -> PreNorm | None:
        return PreNorm(self.pre_norms[str(i)], self.shape.norm_eps) if self.shape.pre_norm else None

    def _open_group(self, sources: tuple[Tensor, ...], begin: int) -> State:
        """The group of the reads `begin .. begin + group - 1`."""
        reads = range(self._first_query(begin), min(begin + self.group_sublayers, self.shape.sublayers))
        if not reads:
            return (sources, ())
        group = open_group(sources, self.queries.stacked(reads), self.key_norms.stacked(reads), eps=self.reads.key_eps)
        return (group.common, group)

    def _group_begin(self, i: int) -> int:
        return i - i % self.group_sublayers

    @staticmethod
    def _first_query(begin: int) -> int:
        """The first read of a group that has a query: sublayer 0 has none."""
        return max(begin, 1)
