"""When live requests are given up."""

from bisect import bisect_left, insort

from openinfer_scheduler.state._sequence import SequenceState


class Deadlines:
    """The live requests that have one, the nearest first. Moving one costs microseconds."""

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, SequenceState]] = []
        """With their numbers in order of arrival, so that no comparison goes beyond these."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, sequence: SequenceState) -> None:
        """A request is live from now on."""
        deadline = sequence.request.deadline
        if deadline is not None:
            insort(self._entries, (deadline, sequence.arrival_index, sequence))

    def remove(self, sequence: SequenceState) -> None:
        """A request is live no more."""
        deadline = sequence.request.deadline
        if deadline is not None:
            place = bisect_left(self._entries, (deadline, sequence.arrival_index))
            assert self._entries[place][2] is sequence, "its deadline is known"
            del self._entries[place]

    def passed(self, now: float) -> list[SequenceState]:
        """Live requests whose deadline has passed. Constant time where none has."""
        entries = self._entries
        if not entries or entries[0][0] > now:
            return []
        return [sequence for deadline, _, sequence in entries if deadline <= now]
