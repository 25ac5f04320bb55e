"""An order of waiting sequences that is kept from plan to plan."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence

from openinfer_scheduler import SequenceState, WaitingSnapshot

NUM_REREAD = 8
"""Number of keys that are read again in each plan, in rotation."""


class Ranking:
    """Waiting sequences in the order of a key, lowest first, and equal ones by arrival.

    Reading the keys of a thousand sequences would cost more than the plan. So a key is read when a
    sequence joins, when its turn comes, and for `NUM_REREAD` others in each plan. Between plans
    only numbers are kept, so that ended requests are not kept alive.

    Args:
        key: the key of a sequence.
        is_fixed: whether a key never changes while the sequence waits.
    """

    def __init__(self, key: Callable[[SequenceState], float], *, is_fixed: bool = False) -> None:
        self._key = key
        self._is_fixed = is_fixed
        self._keys: dict[int, float] = {}
        """Keys by arrival index."""
        self._ranked: list[tuple[float, int]] = []
        """(key, arrival index), sorted."""
        self._reread_from = 0
        """The arrival index at which the rotation continues."""
        self._number = 0
        """Number of the snapshot that was ranked last; 0: none."""

    def order(self, sequences: Sequence[SequenceState]) -> Iterator[SequenceState]:
        """Yields `sequences`, the argument of `Policy.order`, in the order of their keys."""
        if not isinstance(sequences, WaitingSnapshot):  # running ones, or some of the waiting ones
            return iter(sorted(sequences, key=self._key))
        if sequences.follows(self._number):
            for index in sequences.left:
                self._remove(index)
            for sequence in sequences.joined:
                self._update(sequence)
        else:
            self._keys = {sequence.arrival_index: self._key(sequence) for sequence in sequences}
            self._ranked = sorted((key, index) for index, key in self._keys.items())
        self._number = sequences.number
        if not self._is_fixed:
            self._reread(sequences)
        return self._ranked_sequences(sequences)

    def _reread(self, sequences: WaitingSnapshot) -> None:
        start = bisect_left(sequences.indices, self._reread_from)
        stop = start + NUM_REREAD
        key, keys = self._key, self._keys
        for sequence in sequences[start:stop]:
            if key(sequence) != keys.get(sequence.arrival_index):
                self._update(sequence)
        self._reread_from = sequences.indices[stop] if stop < len(sequences) else 0

    def _ranked_sequences(self, sequences: WaitingSnapshot) -> Iterator[SequenceState]:
        place = 0
        while place < len(self._ranked):
            key, index = self._ranked[place]
            sequence = sequences.at(index)
            if not self._is_fixed and self._update(sequence) > key:
                continue  # its key has grown: its turn comes later
            yield sequence
            place += 1

    def _update(self, sequence: SequenceState) -> float:
        """Reads a sequence's key again and moves the sequence to its new place; returns the key."""
        index = sequence.arrival_index
        key = self._key(sequence)
        if self._keys.get(index) != key:
            self._remove(index)
            self._keys[index] = key
            insort(self._ranked, (key, index))
        return key

    def _remove(self, index: int) -> None:
        key = self._keys.pop(index, None)
        if key is not None:
            del self._ranked[bisect_right(self._ranked, (key, index)) - 1]
