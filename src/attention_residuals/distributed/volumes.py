"""What crosses the cuts of a pipeline and what a rank keeps, by walking the network with sets of what each rank has.

`Cuts.crossing` says the same in a line, by counting; neither knows of the other, so that one can be held against the
other, and both against bytes that real processes send (`bench/distributed`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from attention_residuals.distributed.cuts import Cuts, Transport
from attention_residuals.distributed.orders import Action


class Sum(NamedTuple):
    """A tensor of the state: the sum of so many outputs in block `block`. The embedding is block 0 without any."""

    block: int
    outputs: int


class Passage(NamedTuple):
    """The state in front of a chunk: the sums its rank is sent, and those it has already."""

    sent: tuple[Sum, ...]
    kept: tuple[Sum, ...]


def walk(cuts: Cuts, block: int | None, transport: Transport) -> list[Passage]:
    """The passage in front of each chunk; nothing in front of the first, which starts from tokens.

    Args:
        block: sublayers of a block of Block, 1 for Full, None for the standard residual.
        transport: RECEIVED counts the embedding as received where it is made, as the paper's Figure 3 does.
    """
    has: list[set[Sum]] = [set() for _ in range(cuts.ranks)]
    state, found = [Sum(0, 0)], [Passage((), ())]
    for chunk in range(cuts.chunks):
        own = has[chunk % cuts.ranks]
        if chunk > 0:
            sent = tuple(one for one in state if one not in own)
            found.append(Passage(sent, tuple(one for one in state if one in own)))
        if transport is not Transport.NAIVE:
            own.update(state)
        for i in cuts.part(chunk):
            state = _written(state, i, block)
            if transport is Transport.CACHED:
                own.update(state)
    return found


def most_held(passages: Sequence[Passage], ranks: int, order: Sequence[Action]) -> int:
    """The most blocks a rank keeps for later chunks at a time, over its micro-batches, when it runs in this order."""
    kept: dict[int, int] = {}
    most = 0
    for chunk, micro_batch, backward in order:
        if backward:
            continue
        later = chunk + ranks
        kept[micro_batch] = len(passages[later].kept) if later < len(passages) else 0
        most = max(most, sum(kept.values()))
    return most


def closed_form(ranks: int, chunks_per_rank: int, blocks_per_chunk: int, transport: Transport) -> int | None:
    """Sends of blocks over all cuts, the embedding left out, where each chunk is whole blocks.

    The paper's Eq. 7 for NAIVE and Eq. 8 for RECEIVED; it has none for CACHED.
    """
    chunks = ranks * chunks_per_rank
    if transport is Transport.NAIVE:
        return chunks * (chunks - 1) // 2 * blocks_per_chunk
    if transport is Transport.RECEIVED:
        return (ranks * (ranks - 1) // 2 + (chunks_per_rank - 1) * ranks**2) * blocks_per_chunk
    return None


def _written(state: list[Sum], i: int, block: int | None) -> list[Sum]:
    """The sums once sublayer `i` has written."""
    *before, last = state
    if block is not None and i % block == 0:
        return [*state, Sum(last.block + 1, 1)]
    return [*before, Sum(last.block, last.outputs + 1)]
