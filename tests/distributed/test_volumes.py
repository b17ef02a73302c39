"""What crosses the cuts, walked sublayer by sublayer, against the same by counting and against the paper."""

import itertools

import pytest

from attention_residuals import AttnRes, Sublayers
from attention_residuals.distributed.cuts import Cuts, Transport
from attention_residuals.distributed.layout import Schedule
from attention_residuals.distributed.orders import order
from attention_residuals.distributed.volumes import Sum, closed_form, most_held, walk
from attention_residuals.streams import Additive


@pytest.mark.parametrize("block", [None, 1, 2, 3, 4])
@pytest.mark.parametrize(("sublayers", "ranks"), [(8, 2), (7, 3), (8, 4)])
def test_every_cut_of_small_networks(block: int | None, sublayers: int, ranks: int) -> None:
    """`Cuts.crossing` counts from positions alone; here every rank has a set of what it was given and made."""
    residual = Additive() if block is None else AttnRes(Sublayers(block))
    boundary = residual.build(sublayers, width=4).boundary
    for chunks in range(ranks, sublayers + 1, ranks):
        for later in itertools.combinations(range(1, sublayers), chunks - 1):
            cuts = Cuts((0, *later), sublayers, ranks)
            for transport in Transport:
                walked = [(len(one.kept), len(one.sent)) for one in walk(cuts, block, transport)[1:]]
                counted = [cuts.crossing(chunk, boundary, transport) for chunk in range(1, chunks)]
                assert walked == [(one.held, one.received) for one in counted]


def test_figure_3_of_the_paper_block_by_block() -> None:
    """Four ranks, two virtual stages, a block over two chunks: what each rank receives, running sums left out."""
    received = [
        [one.block for one in passage.sent if one.block == 0 or one.outputs == 4]
        for passage in walk(Cuts.even(16, 4, 2), 4, Transport.RECEIVED)
    ]
    assert received == [[], [0], [0, 1], [0, 1], [1, 2], [1, 2], [2, 3], [2, 3]]


def test_what_a_rank_made_does_not_come_back() -> None:
    passages = walk(Cuts.even(8, 2, 2), 2, Transport.CACHED)
    assert [one.sent for one in passages] == [(), (Sum(0, 0), Sum(1, 2)), (Sum(2, 2),), (Sum(3, 2),)]
    assert [one.kept for one in passages] == [(), (), (Sum(0, 0), Sum(1, 2)), (Sum(0, 0), Sum(1, 2), Sum(2, 2))]


@pytest.mark.parametrize(("ranks", "chunks"), [(2, 2), (4, 2), (2, 4), (8, 4)])
def test_the_closed_forms_of_the_paper(ranks: int, chunks: int) -> None:
    cuts = Cuts.even(2 * ranks * chunks, ranks, chunks)
    for transport in (Transport.NAIVE, Transport.RECEIVED):
        blocks = [one for passage in walk(cuts, 2, transport) for one in passage.sent if one.block > 0]
        assert len(blocks) == closed_form(ranks, chunks, 1, transport)
    assert closed_form(4, 2, 1, Transport.NAIVE) == 28
    assert closed_form(4, 2, 1, Transport.RECEIVED) == 22
    assert closed_form(4, 2, 1, Transport.CACHED) is None


def test_what_a_rank_holds() -> None:
    """Two ranks of two chunks keep 2 and 3 blocks for a micro-batch; as many of these as forwards come first."""
    passages = walk(Cuts.even(8, 2, 2), 2, Transport.CACHED)
    orders = [order(Schedule.INTERLEAVED_1F1B, rank, 2, 2, 4) for rank in range(2)]
    assert [most_held(passages, 2, actions) for actions in orders] == [2 * 2, 2 * 3]
    assert [most_held(walk(Cuts.even(8, 2, 2), 2, Transport.NAIVE), 2, actions) for actions in orders] == [0, 0]
