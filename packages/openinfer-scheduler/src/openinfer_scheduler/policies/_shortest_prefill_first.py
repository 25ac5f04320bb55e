"""Fewest tokens to prefill first."""

from collections.abc import Iterable, Sequence
from operator import attrgetter

from openinfer_scheduler._policy import least_urgent
from openinfer_scheduler.policies._overdue import overdue_first
from openinfer_scheduler.policies._ranking import Ranking
from openinfer_scheduler.state._sequence import SequenceState

_num_uncached = attrgetter("num_uncached_tokens")


class ShortestPrefillFirst:
    """Serves those first whose prompt has the fewest tokens left to forward, cached ones left out.

    The mean time to the first token is lowest this way. Preempts the least urgent, of equals the
    youngest. Starvation-free by age: who arrived `max_wait_s` ago goes before all younger ones,
    in order of arrival. With `math.inf` it promises nothing: a long prompt waits for as long as
    short ones keep coming.

    Args:
        max_wait_s: seconds since arrival.
    """

    def __init__(self, max_wait_s: float = 10.0) -> None:
        self._max_wait_s = max_wait_s
        self._ranking = Ranking(_num_uncached)

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Iterable[SequenceState]:
        """By what is left, then arrival; the overdue before all."""
        ranked = self._ranking.order(sequences)
        return overdue_first(sequences, now - self._max_wait_s, ranked)

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """As much as allowed."""
        return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """The least urgent."""
        return least_urgent(candidates)
