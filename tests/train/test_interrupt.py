"""Ctrl-C waits for the step at hand; a second one does not."""

import os
import signal
from collections.abc import Iterator

import pytest

from attention_residuals.train.interrupt import stop_on_interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted(number: signal.Signals) -> None:
    with stop_on_interrupt() as interrupt:
        assert not interrupt.wanted
        os.kill(os.getpid(), number)
        assert interrupt.wanted


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python's own handler: a shell starts background jobs with the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_the_second_one_interrupts() -> None:
    with stop_on_interrupt():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt():
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
