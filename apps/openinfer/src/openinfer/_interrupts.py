"""Ctrl-C at the beginning and at the end of a process.

Until a command has something to close, Ctrl-C ends the process at once with status 130: in the
middle of an import, KeyboardInterrupt could be printed, be swallowed, or crash an extension module.
A command calls `raise_interrupts` before it opens anything. At its end, a server ignores repeated
signals (`end_quietly`).
"""

import os
import signal
from types import FrameType

STATUS = 130


def leave_on_interrupt() -> None:
    """Makes Ctrl-C end the process at once, unless SIGINT is ignored or has another handler."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def raise_interrupts() -> None:
    """Makes Ctrl-C raise KeyboardInterrupt again, after `leave_on_interrupt`."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def end_quietly() -> None:
    """Ignores further SIGINT and SIGTERM if the process handles them, as a server does.

    Call it after everything is closed. Python removes its handlers before it ends, so a repeated
    signal would otherwise change the exit status.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if callable(handler) and handler not in (signal.default_int_handler, _leave):
            signal.signal(number, signal.SIG_IGN)


def forget_interrupts() -> None:
    """Lets the process end with its own status after a Ctrl-C that was handled.

    If KeyboardInterrupt is raised inside `exec`, which dataclasses use on import, CPython remembers
    it and later ends by SIGINT. Another `exec` clears that mark.
    """
    exec("")


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(STATUS)
