"""Sequences without a slot, oldest first."""

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter

from openinfer_scheduler._sequence import SequenceState

_index = attrgetter("arrival_index")


class WaitingQueue:
    """Waiting sequences in order of arrival; a preempted one returns to its old place."""

    def __init__(self) -> None:
        self._sequences: list[SequenceState] = []
        self.num_tokens = 0
        """Known tokens of all of them."""

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def sequences(self) -> Sequence[SequenceState]:
        """Oldest first; changes with the queue."""
        return self._sequences

    def push(self, sequence: SequenceState) -> None:
        """Adds a sequence at the place of its arrival."""
        sequences = self._sequences
        if not sequences or sequences[-1].arrival_index < sequence.arrival_index:
            sequences.append(sequence)
        else:
            place = bisect_left(sequences, sequence.arrival_index, key=_index)
            sequences.insert(place, sequence)
        self.num_tokens += sequence.num_known_tokens

    def remove(self, sequence: SequenceState) -> None:
        """Takes a sequence out."""
        place = bisect_left(self._sequences, sequence.arrival_index, key=_index)
        assert self._sequences[place] is sequence, "the sequence waits"
        del self._sequences[place]
        self.num_tokens -= sequence.num_known_tokens
