"""The worst policy there can be: a scheduler has to stay right whatever a policy says or does."""

from collections.abc import Sequence
from random import Random

from openinfer_scheduler import SequenceState

_CHANCE = 0.04
"""Of each misdeed that no plan survives."""


class Hostility(Exception):
    """Raised by `HostilePolicy` wherever it is asked; the plan being made is lost, and no more."""


class HostilePolicy:
    """Any order, any chunk, any victim, another one every time.

    It changes the lists that it is given, now and then answers what is no answer, for which
    `Scheduler.plan` raises `PolicyError`, and raises `Hostility`.
    """

    def __init__(self, rng: Random) -> None:
        """Draws everything from `rng`, shared with the caller."""
        self._rng = rng

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Sequence[SequenceState]:
        """A shuffle; at times of some, or of some twice."""
        self._may_raise()
        order = self._rng.sample(list(sequences), len(sequences))
        if self._rng.random() < _CHANCE:
            order = order[1:] if self._rng.random() < 0.5 else order + order[:1]
        self._destroy(sequences)
        return order

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """Negative, nothing, little, everything or far too much."""
        self._may_raise()
        return self._rng.choice((-3, 0, 1, 2, max_tokens, 10**9))

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """Anybody."""
        self._may_raise()
        victim = self._rng.choice(candidates)
        self._destroy(candidates)
        return victim

    def charge(self, sequence: SequenceState, num_tokens: int, /) -> None:
        """Holds the scheduler to charge for something."""
        assert num_tokens, "charged for nothing"
        self._may_raise()

    def _may_raise(self) -> None:
        if self._rng.random() < _CHANCE:
            raise Hostility

    def _destroy(self, given: Sequence[SequenceState]) -> None:
        assert isinstance(given, list)
        self._rng.choice((given.clear, given.reverse, lambda: given.extend(given)))()
