"""Lowest `GenerateRequest.priority` first."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from openinfer_scheduler import SequenceState, least_urgent
from openinfer_scheduler.policies._ranking import Ranking

_priority = attrgetter("request.priority")


class Priority:
    """Policy that serves lower `priority` values first, equal ones in order of arrival.

    Preempts the least urgent sequence, among equals the youngest. Starves on purpose: a request
    waits as long as more urgent ones keep arriving.
    """

    def __init__(self) -> None:
        self._ranking = Ranking(_priority, is_fixed=True)

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Iterable[SequenceState]:
        """Returns the sequences by priority, then arrival."""
        return self._ranking.order(sequences)

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """Returns the largest chunk that is allowed."""
        return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """Returns the least urgent candidate."""
        return least_urgent(candidates)
