"""Waiting for another thread or process, with a timeout."""

import time
from collections.abc import Callable

_POLL_S = 0.01


def wait_until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Polls `condition` a hundred times a second and returns once it is true.

    Raises:
        AssertionError: The condition is still false after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"the condition is still false after {timeout_s:g} s"
        time.sleep(_POLL_S)
