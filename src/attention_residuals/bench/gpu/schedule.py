"""Parts one after the other, each within its time, and what is known after each of them is written."""

import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from attention_residuals.bench.results import Table


class Clock:
    """Seconds left; `part` is one that never runs longer than the whole."""

    def __init__(self, seconds: float, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._end = now() + seconds

    @property
    def left(self) -> float:
        """Seconds, at least 0."""
        return max(0.0, self._end - self._now())

    @property
    def over(self) -> bool:
        """Whether no time is left."""
        return self.left == 0.0

    def part(self, seconds: float) -> "Clock":
        """The clock of a part that may take `seconds`."""
        return Clock(min(seconds, self.left), self._now)


@dataclass(frozen=True)
class Part:
    """One part: what it may take, and what it does with its clock; it gives tables to `add` as they are done."""

    seconds: float
    run: Callable[..., None]


class Writer(Protocol):
    """Where results go."""

    def add(self, table: Table) -> None:
        """One more table, written at once."""
        ...

    def note(self, part: str, words: str) -> None:
        """How a part ended, written at once."""
        ...


def run_parts(parts: Mapping[str, Part], context: object, clock: Clock, writer: Writer) -> None:
    """Run them in order. What fails is noted with its error, and the next one runs; without time left none begins."""
    for name, part in parts.items():
        if clock.over:
            writer.note(name, "not begun: no time was left")
            continue
        begun = clock.left
        try:
            part.run(context, clock.part(part.seconds))
        except Exception as error:  # results of the other parts are worth having
            traceback.print_exc()
            writer.note(name, f"failed: {describe_error(error)}")
        else:
            writer.note(name, f"done in {begun - clock.left:.0f} s")


def describe_error(error: BaseException, longest: int = 300) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:longest]}"


def exit_at(seconds: float) -> None:
    """End the process after `seconds`, in whatever it is: a kernel that hangs cannot be interrupted otherwise."""

    def end() -> None:
        for process in multiprocessing.active_children():
            process.terminate()
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
