"""Lowest `GenerateRequest.priority` first."""

from collections.abc import Sequence
from operator import attrgetter

from openinfer_scheduler._policy import least_urgent
from openinfer_scheduler._sequence import SequenceState

_rank = attrgetter("request.priority")


class Priority:
    """Serves lower `priority` values first, equals in order of arrival.

    Preempts the least urgent, of equals the youngest. Starves on purpose: a request waits for as
    long as more urgent ones keep coming; among equals it is first come, first served.
    """

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Sequence[SequenceState]:
        """By priority, then arrival: the argument is in order of arrival, and sorting is stable."""
        return sorted(sequences, key=_rank)

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """As much as allowed."""
        return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """The least urgent."""
        return least_urgent(candidates)
