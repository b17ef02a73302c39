"""Ctrl-C as a wish to stop after the step at hand, so that nothing is cut in half."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupt:
    """Whether somebody asked to stop."""

    def __init__(self) -> None:
        self.wanted = False


@contextmanager
def stop_on_interrupt() -> Iterator[Interrupt]:
    """Note SIGINT and SIGTERM while the body runs; a second one ends the process as usual.

    Outside the main thread, where no handler can be set, nothing is noted.
    """
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def note(number: int, frame: FrameType | None) -> None:
        interrupt.wanted = True
        signal.signal(number, before[signal.Signals(number)])

    for number in before:
        signal.signal(number, note)
    try:
        yield interrupt
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
