"""Ctrl-C while nothing is open yet: the process ends at once, without a word, with status 130.

Raised in the middle of an import, KeyboardInterrupt may be printed, swallowed or crash an
extension module. So the command begins with a handler that leaves, and whatever has something to
close or to stop asks for the exception by `raise_interrupts`.
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


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(STATUS)
