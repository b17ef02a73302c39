"""Timing side by side: every task once a round, in a new order each round, so that what disturbs one disturbs all."""

import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import torch

from attention_residuals.bench.progress import Work

Key = TypeVar("Key", bound=Hashable)
Task: TypeAlias = Callable[[], object]

WARM_UP_CALLS = 4
"""Untimed calls of each task: code is compiled, and an allocator that keeps memory has got what it needs."""

LEAST_ROUNDS = 5
"""Rounds however long they take: quartiles of fewer say nothing."""

COPIED_BYTES = 128 * 2**20
"""Far more than a cache holds."""


@dataclass(frozen=True)
class Quartiles:
    """Lower quartile, median and upper quartile."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Quartiles":
        """Those of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))


def median_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float] | None:
    """An interval that holds the median of what `values` are drawn from; None if they are too few to say.

    Two order statistics (the sign test's interval): nothing is assumed of how the values are distributed.
    """
    ordered, count = sorted(values), len(values)
    below = 0.0  # the chance that the median lies below the lower one
    for rank in range(count // 2):
        below += math.comb(count, rank) / 2**count
        if below > (1 - confidence) / 2:
            return None if rank == 0 else (ordered[rank - 1], ordered[count - rank])
    return (ordered[count // 2 - 1], ordered[-(count // 2)]) if count > 1 else None


@dataclass(frozen=True)
class Budget:
    """How long to go on: at most `repeats` rounds, and no new one after `seconds`, but `LEAST_ROUNDS` in any case."""

    repeats: int
    seconds: float


def time_in_turns(tasks: Mapping[Key, Task], budget: Budget, work: Work) -> dict[Key, list[float]]:
    """Seconds of each task, one value a round; the values of one round belong together."""
    with work.stage("warming up", len(tasks)):
        for task in tasks.values():
            for _ in range(WARM_UP_CALLS):
                task()
            work.advance()
    order, shuffle = list(tasks), random.Random(0).shuffle
    seconds: dict[Key, list[float]] = {key: [] for key in tasks}
    rounds = max(budget.repeats, LEAST_ROUNDS)
    gc.collect()
    gc.disable()
    try:
        with work.stage("timing", rounds):
            begun = time.perf_counter()
            for done in range(rounds):
                if done >= LEAST_ROUNDS and time.perf_counter() - begun > budget.seconds:
                    break
                shuffle(order)
                for key in order:
                    seconds[key].append(_time(tasks[key]))
                work.advance()
    finally:
        gc.enable()
    return seconds


def copy_task() -> Task:
    """A copy of `COPIED_BYTES` into memory that is there: what the floor is measured by."""
    source = torch.ones(COPIED_BYTES // 4)
    target = source.clone()
    return lambda: target.copy_(source)


def copy_bandwidth(seconds: Sequence[float]) -> float:
    """Bytes read and written a second, from the times of `copy_task`."""
    return 2 * COPIED_BYTES / statistics.median(seconds)


def _time(task: Task) -> float:
    """Seconds of one call, freeing what it returns included: a training step has to free it as well."""
    begun = time.perf_counter()
    task()
    return time.perf_counter() - begun
