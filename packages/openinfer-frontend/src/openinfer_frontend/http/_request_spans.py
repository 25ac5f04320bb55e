"""The times at which the parts of one HTTP request begin and end, for traces."""

import time


class RequestSpans:
    """Consecutive parts of one request's time, in monotonic seconds.

    Attributes:
        received_at: when the head had arrived.
        parts: (name, begin, end) of each part.
    """

    __slots__ = ("_cursor", "parts", "received_at")

    def __init__(self) -> None:
        self.received_at = self._cursor = time.monotonic()
        self.parts: list[tuple[str, float, float]] = []

    def mark(self, name: str) -> None:
        """Ends a part now; the next part begins."""
        now = time.monotonic()
        self.parts.append((name, self._cursor, now))
        self._cursor = now

    def finish(self, name: str) -> tuple[tuple[str, float, float], ...]:
        """Ends the last part, and returns the whole request followed by its parts.

        Args:
            name: the name of the request.
        """
        self.mark("answer")
        return ((name, self.received_at, self._cursor), *self.parts)
