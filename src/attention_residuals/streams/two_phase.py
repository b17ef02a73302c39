"""Attention Residuals in two phases (arXiv 2603.15031, Algorithm 1): the same reads, in another order of evaluation."""

from collections.abc import Sequence
from typing import NamedTuple, final

from jaxtyping import Float
from torch import Tensor

from attention_residuals.ops import Ahead, PreNorm, open_group
from attention_residuals.streams.base import State, StreamShape
from attention_residuals.streams.depth import CutStream, DepthReads

FULL_GROUP_SUBLAYERS = 8
"""Full AttnRes has no blocks to batch by, so this many consecutive reads share a first phase."""


class Place(NamedTuple):
    """Of a sublayer in its group: the number and gain of its read there, how many sources it reads, and how many of
    them the group has in common.
    """

    key: str
    r: int
    gain: float
    sources: int
    common: int
    opens_block: bool
    ends_group: bool


@final
class TwoPhaseStream(CutStream):
    """State: `(sources, group)`, `group` being that of the next read, or `()` after the last.

    A group is one block, or several consecutive reads of Full. When it opens, the first phase is due: all its queries
    over the sources that exist by then. Each of its reads goes on from there over the few sources made since. A group
    is a cache beside the sources: it can make again whatever it has handed out, so verbs may be repeated.
    """

    def __init__(self, reads: DepthReads, shape: StreamShape):
        super().__init__(reads, shape)
        block = reads.partition.block
        self.group_sublayers = FULL_GROUP_SUBLAYERS if block == 1 else block
        self._lay_out(range(shape.sublayers))
        self._norms, self._queries, self._keys = self.pre_norms.by_key, self.queries.by_key, self.key_norms.by_key

    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        return self._open_group((embedding,), 0)

    def sources(self, state: State) -> tuple[Tensor, ...]:
        return state[0]

    def unpack(self, tensors: Sequence[Float[Tensor, "*tokens width"]], i: int) -> State:
        fixed = self.boundary(i).fixed
        state = self._open_group(tuple(tensors[:fixed]), i)
        for partial_sum in tensors[fixed:]:
            sources, group = state
            group, source = group.publish(partial_sum)
            state = ((*sources, source), group)
        return state

    def keep(self, sublayers: range, *, head: bool) -> None:
        super().keep(sublayers, head=head)
        self._lay_out(sublayers)

    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        return state[0][0] if i == 0 else self._read(state, i, None)

    def read(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        if i == 0:
            return super().read(state, i)
        return self._read(state, i, self._norm(self.places[i]))

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        (sources, group), place = state, self.places[i]
        assert len(sources) == place.sources, f"state holds {len(sources)} sources, not those of {i}"
        if place.ends_group:
            return self._open_group(self._extend(sources, i, output), i + 1)
        if output.dtype != sources[0].dtype:  # under autocast a sublayer may answer in a narrower type
            output = output.to(sources[0].dtype)
        if place.opens_block:
            group, source = group.publish(output)
            return ((*sources, source), group)
        following = self.places[i + 1]
        group, source = group.publish(output, sources[-1], Ahead(following.r, following.gain, self._norm(following)))
        return ((*sources[:-1], source), group)

    def _read(self, state: State, i: int, norm: PreNorm | None) -> Tensor:
        (sources, group), place = state, self.places[i]
        assert len(sources) == place.sources, f"state holds {len(sources)} sources, not those of {i}"
        return group.read(place.r, sources[place.common :], place.gain, norm)

    def _norm(self, place: Place) -> PreNorm | None:
        return PreNorm(self._norms[place.key], self.shape.norm_eps) if self.shape.pre_norm else None

    def _open_group(self, sources: tuple[Tensor, ...], begin: int) -> State:
        """The group of the reads `begin .. begin + group - 1`."""
        reads = range(self._first_query(begin), self._end(begin))
        if not reads:
            return (sources, ())
        keys = [self.places[i].key for i in reads]
        queries, key_weights = [self._queries[key] for key in keys], [self._keys[key] for key in keys]
        group = open_group(sources, queries, key_weights, eps=self.reads.key_eps)
        return (group.common, group)

    def _lay_out(self, sublayers: range) -> None:
        """Find the places of the sublayers that are here. A group that was cut off at either end is what is left."""
        self.sublayers = sublayers
        self.places = {i: self._place(i) for i in sublayers}

    def _place(self, i: int) -> "Place":
        cut, begin = self.reads.partition, max(i - i % self.group_sublayers, self.sublayers.start)
        return Place(
            key=str(i),
            r=i - self._first_query(begin),
            gain=self.gain(cut.sources(i)),
            sources=cut.sources(i),
            common=self.boundary(begin).fixed,
            opens_block=cut.opens_block(i),
            ends_group=i + 1 == self._end(begin),
        )

    def _end(self, begin: int) -> int:
        """Where the group ends that begins, or goes on, before sublayer `begin`."""
        return min(begin - begin % self.group_sublayers + self.group_sublayers, self.sublayers.stop)

    @staticmethod
    def _first_query(begin: int) -> int:
        """The first read of a group that has a query: sublayer 0 has none."""
        return max(begin, 1)
