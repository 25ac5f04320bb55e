"""First come, first served."""

from collections.abc import Sequence

from openinfer_scheduler import SequenceState, least_urgent


class FCFS:
    """Policy that serves in order of arrival.

    Preempts the least urgent sequence, among equals the youngest.

    Starvation-free: no request is admitted before the oldest one, and the oldest one is preempted
    only for more urgent requests.
    """

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Sequence[SequenceState]:
        """Returns the sequences in order of arrival."""
        return sequences

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """Returns the largest chunk that is allowed."""
        return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """Returns the least urgent candidate."""
        return least_urgent(candidates)
