"""Fewest tokens to prefill first."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from openinfer_scheduler import SequenceState, least_urgent
from openinfer_scheduler.policies._overdue import overdue_first
from openinfer_scheduler.policies._ranking import Ranking

_num_uncached = attrgetter("num_uncached_tokens")


class ShortestPrefillFirst:
    """Policy that serves sequences with the fewest uncached tokens left to forward first.

    This gives the lowest mean time to the first token. Preempts the least urgent sequence, among
    equals the youngest. Starvation-free by age: requests that arrived `max_wait_s` ago go before
    all younger ones, in order of arrival. With `math.inf`, a long prompt waits as long as short
    ones keep arriving.

    Args:
        max_wait_s: seconds since arrival.
    """

    def __init__(self, max_wait_s: float = 10.0) -> None:
        self._max_wait_s = max_wait_s
        self._ranking = Ranking(_num_uncached)

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Iterable[SequenceState]:
        """Returns overdue sequences first, the others by tokens left to forward, then arrival."""
        ranked = self._ranking.order(sequences)
        return overdue_first(sequences, now - self._max_wait_s, ranked)

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """Returns the largest chunk that is allowed."""
        return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """Returns the least urgent candidate."""
        return least_urgent(candidates)
