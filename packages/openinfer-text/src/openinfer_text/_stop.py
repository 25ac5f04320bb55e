"""`StopStrings`: finds stop strings in a growing text and holds back what might become one."""

import re
from collections.abc import Sequence

from openinfer_text._segments import literal_pattern


class StopStrings:
    """A filter over a growing text that ends it at the first stop string; one per stream.

    The first match is the one whose last character comes first; of several that end there, the
    longest. This does not depend on how the text is cut into pushes. Text is held back exactly as
    long as it is the beginning of some stop string.

    Attributes:
        matched: the stop string found, None as long as there is none.
    """

    def __init__(self, stops: Sequence[str], *, include_stop_str_in_output: bool = False) -> None:
        """Watches for any of `stops`; with none of them text passes through.

        Raises:
            ValueError: if a stop string is empty.
        """
        if not all(stops):
            raise ValueError("a stop string must not be empty")
        self.matched: str | None = None
        self._include = include_stop_str_in_output
        # Longest first: among matches that end at one place the first in this order wins.
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._max_held = len(self._stops[0]) - 1 if stops else 0
        self._beginnings = {stop[:end] for stop in self._stops for end in range(1, len(stop))}
        firsts = {stop[0] for stop in self._stops if len(stop) > 1}
        self._candidates = re.compile("|".join(map(re.escape, sorted(firsts))) or "(?!)")
        self._any = re.compile(literal_pattern(self._stops) or "(?!)")
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
        found = self._find(pending)
        if found is not None:
            end, self.matched = found
            self._held = ""
            return pending[: end if self._include else end - len(self.matched)]
        keep = self._first_beginning(pending)
        self._held = pending[keep:]
        return pending[:keep]

    def flush(self) -> str:
        """Ends the text; returns what was held back."""
        held, self._held = self._held, ""
        return held

    def _find(self, pending: str) -> tuple[int, str] | None:
        # One search tells, nearly always, that there is nothing to look for.
        if self._any.search(pending) is None:
            return None
        best: tuple[int, str] | None = None
        for stop in self._stops:
            # Only an earlier end can still win, so the search narrows with every find.
            at = pending.find(stop, 0, None if best is None else best[0] - 1)
            if at >= 0:
                best = at + len(stop), stop
        return best

    def _first_beginning(self, pending: str) -> int:
        """Where the longest tail that begins a stop string starts."""
        start = max(0, len(pending) - self._max_held)
        for candidate in self._candidates.finditer(pending, start):
            if pending[candidate.start() :] in self._beginnings:
                return candidate.start()
        return len(pending)
