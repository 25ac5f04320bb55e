"""The queue of sequences without a slot, oldest first."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from openinfer_scheduler.state._sequence import SequenceState


class WaitingSnapshot(list[SequenceState]):
    """The waiting sequences of one plan, oldest first, and the changes since the previous snapshot.

    This is what `Policy.order` receives for the waiting sequences. A policy that keeps an order
    from plan to plan updates it from `joined` and `left` instead of reading the whole list.

    Attributes:
        indices: `arrival_index` of each sequence, ascending.
        number: number of this snapshot, from 1; 0 for a list that is no snapshot of the queue.
        joined: sequences that joined since the previous snapshot and still wait, oldest first.
        left: `arrival_index` of sequences of the previous snapshot that left since; a sequence that
            left and joined again is in both.
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

    @classmethod
    def of(cls, sequences: Sequence[SequenceState]) -> "WaitingSnapshot":
        """Returns `sequences` itself if it is a snapshot, else a snapshot with number 0.

        A policy that wraps another may pass only some of the waiting sequences on to it.
        """
        if isinstance(sequences, WaitingSnapshot):
            return sequences
        return cls(sequences, [sequence.arrival_index for sequence in sequences], 0, [], [])

    def follows(self, number: int) -> bool:
        """Returns whether snapshot `number` came right before, so `joined` and `left` apply."""
        return 0 < number == self.number - 1

    def at(self, arrival_index: int) -> SequenceState:
        """Returns the sequence with this arrival index, which must be in the snapshot."""
        return self[bisect_left(self.indices, arrival_index)]


class WaitingQueue:
    """Waiting sequences in order of arrival; a preempted one returns to its old place."""

    def __init__(self) -> None:
        self._sequences: list[SequenceState] = []
        self._indices: list[int] = []
        """`arrival_index` of each sequence."""
        self._number = 0
        self._joined: dict[int, SequenceState] = {}
        """Sequences that joined since the last snapshot, by arrival index."""
        self._left: set[int] = set()
        """Arrival indices of sequences of the last snapshot that left since."""
        self.num_tokens = 0
        """Known tokens of all waiting sequences."""

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def sequences(self) -> Sequence[SequenceState]:
        """The queue's own list, oldest first. It is not a copy."""
        return self._sequences

    def snapshot(self) -> WaitingSnapshot:
        """Returns the next snapshot; the caller may change the list."""
        self._number += 1
        joined = [self._joined[index] for index in sorted(self._joined)]
        snapshot = WaitingSnapshot(
            self._sequences, self._indices.copy(), self._number, joined, [*self._left]
        )
        self._joined.clear()
        self._left.clear()
        return snapshot

    def push(self, sequence: SequenceState) -> None:
        """Adds a sequence at the place of its arrival."""
        index = sequence.arrival_index
        place = bisect_left(self._indices, index)
        self._sequences.insert(place, sequence)
        self._indices.insert(place, index)
        self._joined[index] = sequence
        self.num_tokens += sequence.num_known_tokens

    def remove(self, sequence: SequenceState) -> None:
        """Removes a waiting sequence."""
        index = sequence.arrival_index
        place = bisect_left(self._indices, index)
        assert self._sequences[place] is sequence, "the sequence waits"
        del self._sequences[place], self._indices[place]
        if self._joined.pop(index, None) is None:
            self._left.add(index)
        self.num_tokens -= sequence.num_known_tokens
