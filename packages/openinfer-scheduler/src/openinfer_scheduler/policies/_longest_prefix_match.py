"""Longest cached prefix first."""

from collections.abc import Iterable, Sequence

from openinfer_scheduler._policy import least_urgent
from openinfer_scheduler.policies._overdue import overdue_first
from openinfer_scheduler.policies._ranking import Ranking
from openinfer_scheduler.state._sequence import SequenceState


class LongestPrefixMatch:
    """Starts those first that have most of their prompt cached, before it is evicted.

    Running sequences go in order of arrival; preempts the least urgent, of equals the youngest.
    Starvation-free by age: who has waited for `max_wait_s` goes before all younger ones. With
    `math.inf` it promises nothing: a request without a hit waits for as long as hits keep coming.

    Args:
        max_wait_s: seconds since arrival.
    """

    def __init__(self, max_wait_s: float = 30.0) -> None:
        self._max_wait_s = max_wait_s
        self._ranking = Ranking(lambda sequence: -sequence.num_hit_tokens)

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Iterable[SequenceState]:
        """By hit, then arrival; the running ones as they came."""
        if not sequences or sequences[0].is_running:
            return sequences
        ranked = self._ranking.order(sequences)
        return overdue_first(sequences, now - self._max_wait_s, ranked)

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """As much as allowed."""
        return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """The least urgent."""
        return least_urgent(candidates)
