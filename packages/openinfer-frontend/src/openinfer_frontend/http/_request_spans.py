"""When an HTTP request was received, and what was done for it since: for traces."""

import time


class RequestSpans:
    """Parts of one request's time, one behind the other. Monotonic seconds.

    Attributes:
        received_at: when its head was there.
        parts: (name, begin, end).
    """

    __slots__ = ("_cursor", "parts", "received_at")

    def __init__(self) -> None:
        self.received_at = self._cursor = time.monotonic()
        self.parts: list[tuple[str, float, float]] = []

    def mark(self, name: str) -> None:
        """A part ends now, and the next one begins."""
        now = time.monotonic()
        self.parts.append((name, self._cursor, now))
        self._cursor = now

    def whole(self, name: str) -> tuple[tuple[str, float, float], ...]:
        """The request from its head until now, then its parts; the rest is the last one.

        Args:
            name: of the request.
        """
        self.mark("answer")
        return ((name, self.received_at, self._cursor), *self.parts)
