"""Times on the device, implementations taking turns: what a kernel takes, not what it takes to start one."""

import random
import statistics
import time
from collections.abc import Hashable, Mapping
from typing import TypeVar

import torch

from attention_residuals.bench.gpu.schedule import Clock
from attention_residuals.bench.timing import LEAST_ROUNDS, Task

Key = TypeVar("Key", bound=Hashable)

WARM_UP_CALLS = 3
FLUSHED_BYTES = 2**28
"""Written before each call, so that no call finds what the last one left in the cache."""
CYCLES_PER_SECOND = 2e9
"""At least what a GPU's clock runs at, so that a pause is not shorter than meant."""
LONGEST_PAUSE = 0.05


class Stopwatch:
    """Seconds of one call. On a GPU by its own clock.

    The GPU pauses first, long enough for the calls of a task to be queued behind the pause: kernels then follow each
    other as in training, where the host is ahead. A task that waits for the GPU inside itself counts that wait.
    """

    def __init__(self, device: str):
        self._gpu = device == "cuda"
        if self._gpu:
            self._flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=device)
            self._begun, self._ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def prepare(self, task: Task) -> float:
        """Run a task until it is warm; seconds that queueing it takes the host."""
        for _ in range(WARM_UP_CALLS):
            task()
        if not self._gpu:
            return 0.0
        torch.cuda.synchronize()
        begun = time.perf_counter()
        task()
        queued = time.perf_counter() - begun
        torch.cuda.synchronize()
        return queued

    def time(self, task: Task, queued: float) -> float:
        """Seconds of one call; `queued` is what `prepare` answered."""
        if not self._gpu:
            begun = time.perf_counter()
            task()
            return time.perf_counter() - begun
        self._flushed.zero_()
        torch.cuda._sleep(int(CYCLES_PER_SECOND * min(LONGEST_PAUSE, 1.5 * queued + 1e-4)))
        self._begun.record()
        task()
        self._ended.record()
        self._ended.synchronize()
        return self._begun.elapsed_time(self._ended) / 1e3


def device_seconds(
    tasks: Mapping[Key, Task], rounds: int, clock: Clock, stopwatch: Stopwatch
) -> tuple[dict[Key, list[float]], dict[Key, float]]:
    """Seconds of each task, a value a round, and the host's seconds to queue one call.

    Each round calls every task once in a new order. No round begins when the time is over, but a few are run always.
    """
    queued = {key: stopwatch.prepare(task) for key, task in tasks.items()}
    order, shuffle = list(tasks), random.Random(0).shuffle
    seconds: dict[Key, list[float]] = {key: [] for key in tasks}
    for done in range(max(rounds, LEAST_ROUNDS)):
        if done >= LEAST_ROUNDS and clock.over:
            break
        shuffle(order)
        for key in order:
            seconds[key].append(stopwatch.time(tasks[key], queued[key]))
    return seconds, queued


def bandwidth(seconds: list[float], nbytes: int) -> float:
    """Bytes a second of a copy of `nbytes`, read and written ones counted."""
    return 2 * nbytes / statistics.median(seconds)
