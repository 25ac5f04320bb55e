"""Waiting for what another thread or process does."""

import time
from collections.abc import Callable

_POLL_S = 0.01


def wait_until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Returns once `condition()` is true; it is asked a hundred times a second.

    Raises:
        AssertionError: it is not, after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(_POLL_S)
