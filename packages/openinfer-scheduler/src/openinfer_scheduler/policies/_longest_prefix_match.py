"""Longest cached prefix first."""

from collections.abc import Iterable, Sequence

from openinfer_scheduler import SequenceState, least_urgent
from openinfer_scheduler.policies._overdue import overdue_first
from openinfer_scheduler.policies._ranking import Ranking


class LongestPrefixMatch:
    """Policy that starts requests with the longest cached prefix first, before it is evicted.

    Serves running sequences in order of arrival. Preempts the least urgent sequence, among equals
    the youngest. Starvation-free by age: a request that has waited for `max_wait_s` goes before all
    younger ones. With `math.inf`, a request without a hit waits as long as hits keep arriving.

    Args:
        max_wait_s: seconds since arrival.
    """

    def __init__(self, max_wait_s: float = 30.0) -> None:
        self._max_wait_s = max_wait_s
        self._ranking = Ranking(lambda sequence: -sequence.num_hit_tokens)

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Iterable[SequenceState]:
        """Returns waiting sequences by hit, then arrival; running ones by arrival."""
        if not sequences or sequences[0].is_running:
            return sequences
        ranked = self._ranking.order(sequences)
        return overdue_first(sequences, now - self._max_wait_s, ranked)

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """Returns the largest chunk that is allowed."""
        return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """Returns the least urgent candidate."""
        return least_urgent(candidates)
