"""`StopStrings`: finds stop strings in a growing text and holds back what might become one."""

import re
from bisect import bisect_left
from collections.abc import Sequence


class StopSet:
    """The stop strings of one request, prepared once for all its streams.

    Immutable, any thread. Takes little more memory than the strings themselves.
    """

    __slots__ = ("_firsts", "_longest_first", "_max_held", "_sorted")

    def __init__(self, stops: Sequence[str]) -> None:
        """Prepares the search for any of `stops`.

        Raises:
            ValueError: if a stop string is empty.
        """
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._sorted = sorted(set(stops))
        # Among matches that end at one place the first in this order wins.
        self._longest_first = sorted(self._sorted, key=len, reverse=True)
        self._max_held = len(self._longest_first[0]) - 1 if stops else 0
        firsts = sorted({stop[0] for stop in self._sorted})
        self._firsts = re.compile("|".join(map(re.escape, firsts)) or "(?!)")

    def __len__(self) -> int:
        return len(self._sorted)

    def is_near(self, text: str) -> bool:
        """Whether the text has a character that a stop string begins with: nearly never."""
        return self._firsts.search(text) is not None

    def find(self, text: str, num_searched: int) -> tuple[int, str] | None:
        """The first match: where it ends, and the stop string.

        Args:
            text: that is searched.
            num_searched: so many characters of it contain no match.
        """
        best: tuple[int, str] | None = None
        for stop in self._longest_first:
            start = max(0, num_searched - len(stop) + 1)
            # Only an earlier end can still win, so the search narrows with every find.
            at = text.find(stop, start, None if best is None else best[0] - 1)
            if at >= 0:
                best = at + len(stop), stop
        return best

    def first_beginning(self, text: str) -> int:
        """Where the longest tail starts that begins a stop string, in a text without any."""
        start = max(0, len(text) - self._max_held)
        for candidate in self._firsts.finditer(text, start):
            tail = text[candidate.start() :]
            # In a sorted list what begins with a string follows right behind it.
            at = bisect_left(self._sorted, tail)
            if at < len(self._sorted) and self._sorted[at].startswith(tail):
                return candidate.start()
        return len(text)


class StopStrings:
    """A filter over a growing text that ends it at the first stop string; one per stream.

    The first match is the one whose last character comes first; of several that end there, the
    longest. This does not depend on how the text is cut into pushes. Text is held back exactly as
    long as it is the beginning of some stop string.

    Attributes:
        matched: the stop string found, None as long as there is none.
    """

    __slots__ = ("_held", "_include", "_stops", "matched")

    def __init__(
        self, stops: StopSet | Sequence[str], *, include_stop_str_in_output: bool = False
    ) -> None:
        """Watches for any of `stops`, which streams may share; with none of them text passes.

        Raises:
            ValueError: if a stop string is empty.
        """
        self.matched: str | None = None
        self._include = include_stop_str_in_output
        self._stops = stops if isinstance(stops, StopSet) else StopSet(stops)
        self._held = ""

    @property
    def held(self) -> str:
        """Text not yet released because it may be the beginning of a stop string."""
        return self._held

    def push(self, text: str) -> str:
        """Appends text; returns what can be shown now. Nothing passes after a match."""
        if self.matched is not None:
            return ""
        if not self._stops or not text:
            return text
        pending = self._held + text
        if not self._stops.is_near(pending):
            return pending
        found = self._stops.find(pending, len(self._held))
        if found is not None:
            end, self.matched = found
            self._held = ""
            return pending[: end if self._include else end - len(self.matched)]
        keep = self._stops.first_beginning(pending)
        self._held = pending[keep:]
        return pending[:keep]

    def flush(self) -> str:
        """Ends the text; returns what was held back."""
        held, self._held = self._held, ""
        return held
