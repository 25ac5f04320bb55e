"""The deadlines of live requests."""

from bisect import bisect_left, insort

from openinfer_scheduler.state._sequence import SequenceState


class Deadlines:
    """Live requests that have a deadline, nearest first. Adding or removing costs microseconds."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, SequenceState]] = []
        """(deadline, arrival index, sequence): the index is unique, so no comparison reaches the
        sequence."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, sequence: SequenceState) -> None:
        """Adds a request that has become live."""
        deadline = sequence.request.deadline
        if deadline is not None:
            insort(self._entries, (deadline, sequence.arrival_index, sequence))

    def remove(self, sequence: SequenceState) -> None:
        """Removes a request that has ended."""
        deadline = sequence.request.deadline
        if deadline is not None:
            place = bisect_left(self._entries, (deadline, sequence.arrival_index))
            assert self._entries[place][2] is sequence, "its deadline was added"
            del self._entries[place]

    def passed(self, now: float) -> list[SequenceState]:
        """Returns live requests whose deadline has passed; constant time if there are none."""
        entries = self._entries
        if not entries or entries[0][0] > now:
            return []
        return [sequence for deadline, _, sequence in entries if deadline <= now]
