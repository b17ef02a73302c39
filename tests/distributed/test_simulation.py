"""Steps on paper, against formulas where there are some and against sums by hand."""

import math

import pytest

from attention_residuals.distributed.layout import Schedule
from attention_residuals.distributed.simulation import Load, Wires, simulate


def even(chunks: int, received: int = 0) -> Load:
    """A forward of a second and a backward of two in each chunk."""
    return Load((1.0,) * chunks, (2.0,) * chunks, (0, *(received,) * (chunks - 1)))


@pytest.mark.parametrize("schedule", Schedule)
@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 4), (4, 8), (8, 16)])
def test_the_bubble_without_transport(schedule: Schedule, ranks: int, micro_batches: int) -> None:
    """P - 1 chunks of work beside M V of them; arXiv 2104.04473, section 2.2."""
    for chunks in (1, 2, 4) if schedule is Schedule.INTERLEAVED_1F1B else (1,):
        step = simulate(even(ranks * chunks), ranks, micro_batches, schedule)
        work = micro_batches * chunks
        assert step.seconds == 3 * (work + ranks - 1)
        assert step.bubble == pytest.approx((ranks - 1) / (work + ranks - 1))
        assert step.computing == (3.0 * work,) * ranks and step.raw_transport == 0


@pytest.mark.parametrize("wires", Wires)
@pytest.mark.parametrize("schedule", [Schedule.GPIPE, Schedule.INTERLEAVED_1F1B])
def test_one_micro_batch_pays_for_every_transfer(schedule: Schedule, wires: Wires) -> None:
    """Nothing is there to overlap with: three seconds a chunk, and a transfer there and back over each cut."""
    chunks = 6 if schedule is Schedule.INTERLEAVED_1F1B else 2
    step = simulate(even(chunks, received=5), 2, 1, schedule, bytes_per_second=10, wires=wires)
    assert step.seconds == 3 * chunks + 2 * (chunks - 1) * 0.5
    still = simulate(even(chunks), 2, 1, schedule)
    assert step.exposed(still) == pytest.approx((chunks - 1) / step.seconds)


def test_a_gpipe_step_by_hand() -> None:
    """Two ranks, two micro-batches, a transfer of half a second: the second state and gradient travel unseen."""
    load = even(2, received=5)
    step = simulate(load, 2, 2, Schedule.GPIPE, bytes_per_second=10)
    # Rank 1: forwards 1.5-2.5 and 2.5-3.5, backwards 3.5-5.5 and 5.5-7.5; rank 0: backwards 6-8 and 8-10.
    assert step.seconds == 10.0
    assert step.sending == (1.0, 1.0)
    # Without overlap rank 0 begins its second forward at 1.5 and rank 1 its own at 3; its backwards wait for nothing,
    # but the first gradient leaves before the second backward: 4-6, 6.5-8.5, sent by 9; rank 0: 6.5-8.5 and 9-11.
    assert simulate(load, 2, 2, Schedule.GPIPE, bytes_per_second=10, wires=Wires.BLOCKING).seconds == 11.0


def test_a_link_carries_one_transfer_at_a_time() -> None:
    """Transfers that take longer than chunks queue up: the last state arrives when all have gone."""
    micro_batches, transfer = 5, 4.0
    load = Load((1.0, 1.0), (2.0, 2.0), (0, 4))
    step = simulate(load, 2, micro_batches, Schedule.GPIPE, bytes_per_second=1)
    last_forward = 1 + micro_batches * transfer + 1
    assert step.seconds == last_forward + 2 + micro_batches * transfer + 2


def test_two_ranks_share_their_one_pair_of_wires() -> None:
    """With two ranks states and gradients take the same link; a port is the same as a link."""
    load = even(8, received=20)
    steps = [simulate(load, 2, 4, Schedule.INTERLEAVED_1F1B, 10, wires) for wires in (Wires.LINKS, Wires.PORTS)]
    assert steps[0] == steps[1]


@pytest.mark.parametrize("wires", Wires)
def test_faster_wires_never_hurt(wires: Wires) -> None:
    load = Load((1.0,) * 8, (2.0,) * 8, (0, *range(1, 8)))
    speeds = (0.5, 1, 2, 8, 64, math.inf)
    seconds = [simulate(load, 4, 8, Schedule.INTERLEAVED_1F1B, speed, wires).seconds for speed in speeds]
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[-1] == simulate(even(8), 4, 8, Schedule.INTERLEAVED_1F1B).seconds


def test_less_to_share_never_hurts() -> None:
    load = even(16, received=7)
    links, ports, blocking = (simulate(load, 4, 8, Schedule.INTERLEAVED_1F1B, 10, wires).seconds for wires in Wires)
    assert links <= ports <= blocking
