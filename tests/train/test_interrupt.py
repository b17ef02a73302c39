"""Ctrl-C waits for the step at hand; a second one does not."""

import os
import signal

import pytest

from attention_residuals.train.interrupt import stop_on_interrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_noted(number: signal.Signals) -> None:
    with stop_on_interrupt() as interrupt:
        assert not interrupt.wanted
        os.kill(os.getpid(), number)
        assert interrupt.wanted


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
