"""Sequences without a slot, oldest first."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from openinfer_scheduler.state._sequence import SequenceState


class Waiting(list[SequenceState]):
    """The waiting sequences at one moment, oldest first, and what has changed since the one before.

    Attributes:
        indices: their `arrival_index`.
        number: of this moment, counted from 1; 0: of none.
        joined: those that came since the moment before and are still here, oldest first.
        left: `arrival_index` of those that were here then and went, even if they came back.
    """

    __slots__ = ("indices", "joined", "left", "number")

    def __init__(
        self,
        sequences: Iterable[SequenceState],
        indices: list[int],
        number: int,
        joined: list[SequenceState],
        left: list[int],
    ) -> None:
        super().__init__(sequences)
        self.indices = indices
        self.number = number
        self.joined = joined
        self.left = left

    def follows(self, number: int) -> bool:
        """Whether the moment before was this one, so that what has changed since is known."""
        return 0 < number == self.number - 1

    def at(self, arrival_index: int) -> SequenceState:
        """The sequence with this index, which is here."""
        return self[bisect_left(self.indices, arrival_index)]


def moment_of(sequences: Sequence[SequenceState]) -> Waiting:
    """What `Policy.order` got as a moment: of none, where another policy chose some of them."""
    if isinstance(sequences, Waiting):
        return sequences
    return Waiting(sequences, [sequence.arrival_index for sequence in sequences], 0, [], [])


class WaitingQueue:
    """Waiting sequences in order of arrival; a preempted one returns to its old place."""

    def __init__(self) -> None:
        self._sequences: list[SequenceState] = []
        self._indices: list[int] = []
        """Their `arrival_index`."""
        self._number = 0
        self._joined: dict[int, SequenceState] = {}
        """Since the last moment that was looked at."""
        self._left: set[int] = set()
        """Since then, of those that were here."""
        self.num_tokens = 0
        """Known tokens of all of them."""

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def sequences(self) -> Sequence[SequenceState]:
        """Oldest first; changes with the queue."""
        return self._sequences

    def now(self) -> Waiting:
        """The next moment; what is returned belongs to the caller."""
        self._number += 1
        joined = [self._joined[index] for index in sorted(self._joined)]
        moment = Waiting(self._sequences, self._indices.copy(), self._number, joined, [*self._left])
        self._joined.clear()
        self._left.clear()
        return moment

    def push(self, sequence: SequenceState) -> None:
        """Adds a sequence at the place of its arrival."""
        index = sequence.arrival_index
        place = bisect_left(self._indices, index)
        self._sequences.insert(place, sequence)
        self._indices.insert(place, index)
        self._joined[index] = sequence
        self.num_tokens += sequence.num_known_tokens

    def remove(self, sequence: SequenceState) -> None:
        """Takes a sequence out."""
        index = sequence.arrival_index
        place = bisect_left(self._indices, index)
        assert self._sequences[place] is sequence, "the sequence waits"
        del self._sequences[place], self._indices[place]
        if self._joined.pop(index, None) is None:
            self._left.add(index)
        self.num_tokens -= sequence.num_known_tokens
