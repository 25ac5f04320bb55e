"""Signals that arrive after a signal has ended the server."""

import signal
import time

import pytest

from openinfer_frontend import SAME_SIGNAL_S
from openinfer_frontend.http._signals import ShutdownSignals

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def seen():
    """Signals that reach the program's own handlers around the server."""
    seen = []
    before = {number: signal.signal(number, lambda at, _: seen.append(at)) for number in NUMBERS}
    yield seen
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def served():
    """Ends a server by a signal that arrived some seconds ago."""

    def end(ago_s):
        signals = ShutdownSignals()
        with signals.ignoring_repetitions():
            signals.begin(time.monotonic() - ago_s)
        return signals

    return end


@pytest.mark.parametrize("number", NUMBERS)
def test_repetitions_are_ignored_and_new_signals_reach_the_program(seen, served, number):
    signals = served(0.0)
    signal.raise_signal(number)
    assert seen == []
    signals.begin(time.monotonic() - SAME_SIGNAL_S)
    signal.raise_signal(number)
    signal.raise_signal(number)
    assert seen == [number, number]


def test_handlers_are_restored_when_no_repetition_can_come(seen, served):
    handlers = [signal.getsignal(number) for number in NUMBERS]
    served(SAME_SIGNAL_S)
    assert [signal.getsignal(number) for number in NUMBERS] == handlers
    with ShutdownSignals().ignoring_repetitions():
        assert [signal.getsignal(number) for number in NUMBERS] != handlers
    assert [signal.getsignal(number) for number in NUMBERS] == handlers


def test_a_handler_set_by_the_program_stays(seen, served):
    signals, later = served(0.0), []
    signal.signal(signal.SIGINT, lambda at, _: later.append(at))
    signals.begin(time.monotonic() - SAME_SIGNAL_S)
    for number in NUMBERS[::-1]:
        signal.raise_signal(number)
    assert (seen, later) == ([signal.SIGTERM], [signal.SIGINT])
