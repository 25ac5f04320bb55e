"""Ctrl-C while nothing is open yet: the process ends at once, without a word, with status 130.

Raised in the middle of an import, KeyboardInterrupt may be printed, swallowed or crash an
extension module. So the command begins with a handler that leaves, and whatever has something to
close or to stop asks for the exception by `raise_interrupts`. At the other end of a server's life
the rest of the signal that ended it is nothing: `end_quietly`.
"""

import os
import signal
from types import FrameType

STATUS = 130


def leave_on_interrupt() -> None:
    """Ctrl-C ends the process at once. Not where somebody else decides, or it is ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_interrupts() -> None:
    """Ctrl-C raises KeyboardInterrupt, as Python is used to; undoes `leave_on_interrupt`."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_quietly() -> None:
    """What a server has acted on already no longer ends the process, nor changes its status.

    To be called when all is closed: the interpreter's own end takes every other handler away.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if callable(handler) and handler not in (signal.default_int_handler, _leave):
            signal.signal(number, signal.SIG_IGN)


def forget_interrupts() -> None:
    """A Ctrl-C that was acted on leaves the process the status that it ends with.

    Raised inside of text that is executed, as dataclasses do while they are imported, it marks the
    interpreter, which then ends by SIGINT whatever its status should be; the next text takes the
    mark away.
    """
    exec("")


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(STATUS)
