"""In which order a rank runs its chunks: what the schedules of `torch.distributed.pipelining` do, as plain lists."""

from typing import NamedTuple

from attention_residuals.distributed.layout import Schedule
from attention_residuals.errors import InputError


class Action(NamedTuple):
    """The forward or the backward of one chunk for one micro-batch."""

    chunk: int
    micro_batch: int
    backward: bool


def order(schedule: Schedule, rank: int, ranks: int, chunks_per_rank: int, micro_batches: int) -> list[Action]:
    """All that `rank` runs in a step, in its order; chunk `c` lies on rank `c mod ranks`.

    Some forwards come first, then a forward and a backward in turns, then the backwards that are left. Schedules differ
    in how many come first.

    Raises:
        InputError: numbers for which torch has no such schedule.
    """
    _require_fit(schedule, ranks, chunks_per_rank, micro_batches)
    every = chunks_per_rank * micro_batches
    in_a_row = _in_a_row(schedule, ranks, micro_batches)
    forwards = [_nth(n, rank, ranks, chunks_per_rank, in_a_row, backward=False) for n in range(every)]
    backwards = [_nth(n, rank, ranks, chunks_per_rank, in_a_row, backward=True) for n in range(every)]
    later = ranks - 1 - rank
    first = {
        Schedule.GPIPE: every,
        Schedule.ONE_F_ONE_B: later,
        Schedule.INTERLEAVED_1F1B: (chunks_per_rank - 1) * in_a_row + 2 * later,
    }[schedule]
    first = min(first, every)
    turns = [action for pair in zip(forwards[first:], backwards, strict=False) for action in pair]
    return [*forwards[:first], *turns, *backwards[every - first :]]


def _in_a_row(schedule: Schedule, ranks: int, micro_batches: int) -> int:
    """Micro-batches that a chunk runs before the next chunk of its rank has its turn: about as many as ranks."""
    return micro_batches // max(1, micro_batches // ranks) if schedule is Schedule.INTERLEAVED_1F1B else micro_batches


def _nth(n: int, rank: int, ranks: int, chunks_per_rank: int, in_a_row: int, *, backward: bool) -> Action:
    """The `n`-th of the forwards, or of the backwards, of a rank."""
    turn, place = divmod(n, in_a_row)
    rounds, own = divmod(turn, chunks_per_rank)
    if backward:
        own = chunks_per_rank - 1 - own
    return Action(own * ranks + rank, rounds * in_a_row + place, backward)


def _require_fit(schedule: Schedule, ranks: int, chunks_per_rank: int, micro_batches: int) -> None:
    if schedule is Schedule.INTERLEAVED_1F1B:
        rounds = max(1, micro_batches // ranks)
        if micro_batches % rounds:
            raise InputError(
                f"{micro_batches} micro-batches do not divide into {rounds} rounds of {ranks} ranks; "
                f"take a multiple of {ranks}"
            )
    elif chunks_per_rank > 1:
        raise InputError(
            f"the schedule {schedule.value} has one chunk a rank, not {chunks_per_rank}; choose interleaved-1f1b"
        )
    if schedule is Schedule.ONE_F_ONE_B and micro_batches < ranks:
        raise InputError(f"{micro_batches} micro-batches are fewer than {ranks} ranks; 1f1b takes at least as many")
