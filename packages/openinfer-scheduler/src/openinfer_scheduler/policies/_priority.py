"""Lowest `GenerateRequest.priority` first."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from openinfer_scheduler._policy import least_urgent
from openinfer_scheduler.policies._ranking import Ranking
from openinfer_scheduler.state._sequence import SequenceState

_rank = attrgetter("request.priority")


class Priority:
    """Serves lower `priority` values first, equals in order of arrival.

    Preempts the least urgent, of equals the youngest. Starves on purpose: a request waits for as
    long as more urgent ones keep coming; among equals it is first come, first served.
    """

    def __init__(self) -> None:
        self._ranking = Ranking(_rank, is_fixed=True)

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Iterable[SequenceState]:
        """By priority, then arrival."""
        return self._ranking.order(sequences)

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """As much as allowed."""
        return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """The least urgent."""
        return least_urgent(candidates)
