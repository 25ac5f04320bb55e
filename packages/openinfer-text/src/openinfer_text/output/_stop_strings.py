"""Search for stop strings in a growing text.

The end of the text is held back while it may begin a stop string.
"""

import re
from bisect import bisect_left
from collections.abc import Sequence


class StopSet:
    """The stop strings of one request, prepared once for all its outputs.

    Immutable; any thread may use it. It takes little more memory than the strings themselves.
    """

    __slots__ = ("_firsts", "_longest_first", "_max_held", "_sorted")

    def __init__(self, stops: Sequence[str]) -> None:
        """Prepares the search for `stops`.

        Raises:
            ValueError: a stop string is empty.
        """
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self._sorted = sorted(set(stops))
        # Among matches that end at the same place, the first in this order wins.
        self._longest_first = sorted(self._sorted, key=len, reverse=True)
        self._max_held = len(self._longest_first[0]) - 1 if stops else 0
        firsts = sorted({stop[0] for stop in self._sorted})
        self._firsts = re.compile("|".join(map(re.escape, firsts)) or "(?!)")

    def __len__(self) -> int:
        return len(self._sorted)

    def is_near(self, text: str) -> bool:
        """Returns whether the text has a character that begins a stop string; it rarely does."""
        return self._firsts.search(text) is not None

    def find(self, text: str, num_searched: int) -> tuple[int, str] | None:
        """Returns the first match as (end, stop string), None if there is none.

        Args:
            text: text to search.
            num_searched: length of the beginning of `text` that contains no match.
        """
        best: tuple[int, str] | None = None
        for stop in self._longest_first:
            start = max(0, num_searched - len(stop) + 1)
            # Only a match with an earlier end can replace this one, so the search narrows with
            # every match.
            at = text.find(stop, start, None if best is None else best[0] - 1)
            if at >= 0:
                best = at + len(stop), stop
        return best

    def first_beginning(self, text: str) -> int:
        """Returns the start of the longest tail of `text` that begins a stop string."""
        start = max(0, len(text) - self._max_held)
        for candidate in self._firsts.finditer(text, start):
            tail = text[candidate.start() :]
            # In a sorted list, the strings that begin with `tail` come directly after its position.
            at = bisect_left(self._sorted, tail)
            if at < len(self._sorted) and self._sorted[at].startswith(tail):
                return candidate.start()
        return len(text)


class StopStrings:
    """A filter that ends a growing text at the first stop string; one for each output.

    The first match is the one that ends first; of several that end at the same place, the longest.
    The result does not depend on how the text is cut into pushes. Text is held back exactly as long
    as it is the beginning of a stop string.

    Attributes:
        matched: the stop string that was found, None until then.
    """

    __slots__ = ("_held", "_include", "_stops", "matched")

    def __init__(
        self, stops: StopSet | Sequence[str], *, include_stop_str_in_output: bool = False
    ) -> None:
        """Starts a text. Without stop strings all text passes.

        Raises:
            ValueError: a stop string is empty.
        """
        self.matched: str | None = None
        self._include = include_stop_str_in_output
        self._stops = stops if isinstance(stops, StopSet) else StopSet(stops)
        self._held = ""

    @property
    def held(self) -> str:
        """Text that is held back because it may be the beginning of a stop string."""
        return self._held

    def push(self, text: str) -> str:
        """Appends text and returns the text that can be shown now; none after a match."""
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
        """Ends the text and returns the held text."""
        held, self._held = self._held, ""
        return held
