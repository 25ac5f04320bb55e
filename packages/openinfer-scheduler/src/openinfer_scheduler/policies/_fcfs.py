"""First come, first served."""

from collections.abc import Sequence

from openinfer_scheduler._policy import least_urgent
from openinfer_scheduler.state._sequence import SequenceState


class FCFS:
    """Serves in order of arrival; preempts the least urgent, of equals the youngest.

    Starvation-free: nothing is admitted before the oldest request, and it is preempted for more
    urgent ones only.
    """

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Sequence[SequenceState]:
        """As they came."""
        return sequences

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """As much as allowed."""
        return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """The least urgent."""
        return least_urgent(candidates)
