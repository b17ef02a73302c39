"""The order of actions, against that of torch's own schedules."""

from typing import Any

import pytest
from torch.distributed.pipelining import ScheduleGPipe, ScheduleInterleaved1F1B

from attention_residuals import InputError
from attention_residuals.distributed.layout import Schedule
from attention_residuals.distributed.orders import Action, order


def of_torch(actions: list[Any]) -> list[Action]:
    """Torch's list without its pauses and reductions of gradients, which have no micro-batch."""
    found = [one for one in actions if one is not None and one.microbatch_index is not None]
    ways = {"FORWARD": False, "FULL_BACKWARD": True}
    return [Action(one.stage_index, one.microbatch_index, ways[one.computation_type.name]) for one in found]


@pytest.mark.parametrize(
    ("ranks", "chunks", "micro_batches"),
    [(2, 2, 4), (2, 4, 4), (4, 2, 8), (4, 2, 4), (4, 3, 10), (4, 2, 3), (8, 4, 32)],
)
def test_interleaved_1f1b_is_torchs(ranks: int, chunks: int, micro_batches: int) -> None:
    """By the methods that its constructor calls, which needs processes itself."""
    schedule = object.__new__(ScheduleInterleaved1F1B)
    schedule.n_local_stages, schedule.pp_group_size, schedule._n_microbatches = chunks, ranks, micro_batches
    schedule.number_of_rounds = max(1, micro_batches // ranks)
    schedule.microbatches_per_round = micro_batches // schedule.number_of_rounds
    for rank in range(ranks):
        expected = of_torch(schedule._calculate_single_rank_operations(rank))
        assert order(Schedule.INTERLEAVED_1F1B, rank, ranks, chunks, micro_batches) == expected


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (4, 8), (8, 3)])
def test_gpipe_is_torchs(ranks: int, micro_batches: int) -> None:
    schedule = object.__new__(ScheduleGPipe)
    schedule._num_stages, schedule._n_microbatches = ranks, micro_batches
    orders = schedule._get_pipeline_order()
    assert orders is not None
    for rank in range(ranks):
        assert order(Schedule.GPIPE, rank, ranks, 1, micro_batches) == of_torch(orders[rank])


@pytest.mark.parametrize(("ranks", "micro_batches"), [(2, 2), (4, 7), (8, 32)])
def test_1f1b_goes_back_as_soon_as_it_can(ranks: int, micro_batches: int) -> None:
    """Torch runs it from a loop; that loop's order is recorded on real ranks in `test_transports.py`."""
    for rank in range(ranks):
        actions = order(Schedule.ONE_F_ONE_B, rank, ranks, 1, micro_batches)
        assert sorted(actions) == [(rank, n, way) for n in range(micro_batches) for way in (False, True)]
        in_flight = most = 0
        for action in actions:
            in_flight += -1 if action.backward else 1
            most = max(most, in_flight)
        assert most == min(micro_batches, ranks - rank)


@pytest.mark.parametrize(
    ("schedule", "ranks", "chunks", "micro_batches", "message"),
    [
        (Schedule.ONE_F_ONE_B, 4, 1, 3, "3 micro-batches are fewer than 4 ranks"),
        (Schedule.INTERLEAVED_1F1B, 4, 2, 9, "9 micro-batches do not divide into 2 rounds"),
        (Schedule.GPIPE, 4, 2, 8, "choose interleaved-1f1b"),
    ],
)
def test_orders_that_torch_has_not(
    schedule: Schedule, ranks: int, chunks: int, micro_batches: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        order(schedule, 0, ranks, chunks, micro_batches)
