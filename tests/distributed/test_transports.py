"""Real ranks: bytes at the process group, blocks held, and the order of actions, against what is said without any."""

from pathlib import Path

import pytest

from attention_residuals.bench.distributed.parity import MICRO_BATCHES, UNIT_BYTES, Case, find_whole, run_case
from attention_residuals.distributed.cuts import Transport
from attention_residuals.distributed.layout import Schedule
from attention_residuals.distributed.orders import order
from attention_residuals.distributed.ranks import run_on_ranks
from attention_residuals.distributed.volumes import most_held, walk

LAYERS, BLOCK, STEPS = 4, 3, 2
CUTS = {(2, 2): (0, 1, 4, 6), (2, 4): tuple(range(8)), (4, 2): tuple(range(8))}


def check(rank: int, ranks: int, cuts: tuple[int, ...], schedule: Schedule, transport: Transport) -> None:
    case = Case(LAYERS, BLOCK, cuts, ranks, schedule, transport)
    found = run_case(case, rank, find_whole(case), STEPS)
    assert found.right, (found.loss, found.gradient, found.missing)
    passages = walk(case.chunks, BLOCK, transport)
    actions = order(schedule, rank, ranks, len(cuts) // ranks, MICRO_BATCHES)
    assert found.counted.actions == actions
    assert found.most_held == most_held(passages, ranks, actions)
    sizes = [len(passage.sent) * UNIT_BYTES for passage in passages]
    own = range(rank, len(cuts), ranks)
    assert found.counted.states == {chunk + 1: sizes[chunk + 1] for chunk in own if chunk + 1 < len(cuts)}
    assert found.counted.gradients == {chunk: sizes[chunk] for chunk in own if chunk > 0}
    assert found.counted.other == 0


def two_ranks(rank: int, folder: Path) -> None:
    for transport in Transport:
        for layout in ((2, 2), (2, 4)):
            check(rank, 2, CUTS[layout], Schedule.INTERLEAVED_1F1B, transport)
    for schedule in (Schedule.GPIPE, Schedule.ONE_F_ONE_B):
        check(rank, 2, (0, 5), schedule, Transport.CACHED)
    (folder / f"done-{rank}").touch()


def four_ranks(rank: int, folder: Path) -> None:
    for transport in Transport:
        check(rank, 4, CUTS[4, 2], Schedule.INTERLEAVED_1F1B, transport)
    check(rank, 4, (0, 1, 4, 5), Schedule.ONE_F_ONE_B, Transport.CACHED)
    (folder / f"done-{rank}").touch()


@pytest.mark.dist
@pytest.mark.parametrize(("ranks", "body"), [(2, two_ranks), (4, four_ranks)])
def test_real_ranks_do_what_is_said(ranks: int, body, tmp_path: Path) -> None:
    run_on_ranks(ranks, tmp_path, body)
    assert len(list(tmp_path.glob("done-*"))) == ranks
