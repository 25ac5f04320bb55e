"""Waiting sequences by a key that few of them change from plan to plan."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence

from openinfer_scheduler.state._sequence import SequenceState
from openinfer_scheduler.state._waiting_queue import Waiting

NUM_REREAD = 8
"""Keys that are read again in one plan, in turn."""


class Ranking:
    """The order of waiting sequences by a key, lowest first, and of equals the oldest.

    To ask a thousand sequences for their keys would cost more than the plan. So a key is read when
    a sequence comes, when its turn comes, and of so many others in every plan, one after another.
    Between two plans only numbers are kept: a request that is over is not held on to.

    Args:
        key: of a sequence, to be compared with others.
        is_fixed: whether it stays what it was while the sequence waits.
    """

    def __init__(self, key: Callable[[SequenceState], float], *, is_fixed: bool = False) -> None:
        self._key = key
        self._is_fixed = is_fixed
        self._keys: dict[int, float] = {}
        """By arrival index."""
        self._ranked: list[tuple[float, int]] = []
        """Keys and arrival indices, sorted."""
        self._reread_from = 0
        """The arrival index at which to go on."""
        self._number = 0
        """Of the moment of the queue whose sequences these are; 0: of none."""

    def order(self, sequences: Sequence[SequenceState]) -> Iterator[SequenceState]:
        """Sequences as `Policy.order` gets those that wait, ranked as they are asked for."""
        if not isinstance(sequences, Waiting):  # some of them, chosen by another policy
            return iter(sorted(sequences, key=self._key))
        if sequences.follows(self._number):
            for index in sequences.left:
                self._drop(index)
            for sequence in sequences.joined:
                self._put(sequence)
        else:
            self._keys = {sequence.arrival_index: self._key(sequence) for sequence in sequences}
            self._ranked = sorted((key, index) for index, key in self._keys.items())
        self._number = sequences.number
        if not self._is_fixed:
            self._read_again(sequences)
        return self._turns(sequences)

    def _read_again(self, sequences: Waiting) -> None:
        start = bisect_left(sequences.indices, self._reread_from)
        stop = start + NUM_REREAD
        key, keys = self._key, self._keys
        for sequence in sequences[start:stop]:
            if key(sequence) != keys.get(sequence.arrival_index):
                self._put(sequence)
        self._reread_from = sequences.indices[stop] if stop < len(sequences) else 0

    def _turns(self, sequences: Waiting) -> Iterator[SequenceState]:
        place = 0
        while place < len(self._ranked):
            key, index = self._ranked[place]
            sequence = sequences.at(index)
            if not self._is_fixed and self._put(sequence) > key:
                continue  # it has a later turn
            yield sequence
            place += 1

    def _put(self, sequence: SequenceState) -> float:
        """Where it belongs now; its key."""
        index = sequence.arrival_index
        key = self._key(sequence)
        if self._keys.get(index) != key:
            self._drop(index)
            self._keys[index] = key
            insort(self._ranked, (key, index))
        return key

    def _drop(self, index: int) -> None:
        key = self._keys.pop(index, None)
        if key is not None:
            del self._ranked[bisect_right(self._ranked, (key, index)) - 1]
