"""When live requests are given up."""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from openinfer_scheduler._sequence import SequenceState

_MAX_ENDED = 64


class Deadlines:
    """A heap of deadlines; requests that end before theirs stay in it for a while."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, SequenceState]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, sequence: SequenceState, deadline: float, num_live: int) -> None:
        """Notes a deadline, and forgets ended requests where they are many beside the live ones.

        Constant time on average.
        """
        heappush(self._heap, (deadline, sequence.arrival_index, sequence))
        if len(self._heap) > 2 * num_live + _MAX_ENDED:
            self._heap = [entry for entry in self._heap if not entry[2].is_ended]
            heapify(self._heap)

    def take_passed(self, now: float) -> Iterator[SequenceState]:
        """Live requests whose deadline has passed. Constant time where none has."""
        while self._heap and self._heap[0][0] <= now:
            _, _, sequence = heappop(self._heap)
            if not sequence.is_ended:
                yield sequence
