"""Policy that breaks every rule of policies: a scheduler must stay correct with any policy."""

from collections.abc import Sequence
from random import Random

from openinfer_scheduler import SequenceState

_CHANCE = 0.04
"""Probability of each fault for which a scheduler replaces the policy."""


class Hostility(Exception):
    """Raised by the methods of `HostilePolicy`."""


class HostilePolicy:
    """Returns random orders, chunks and victims.

    It changes the lists that it is given. Now and then it returns an invalid order or raises
    `Hostility`; `Scheduler.take_policy_error` then returns a `PolicyError`.
    """

    def __init__(self, rng: Random) -> None:
        """Makes a policy that draws from the caller's `rng`."""
        self._rng = rng

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Sequence[SequenceState]:
        """Returns a shuffle; at times it lacks a sequence or has one twice."""
        self._may_raise()
        order = self._rng.sample(list(sequences), len(sequences))
        if self._rng.random() < _CHANCE:
            order = order[1:] if self._rng.random() < 0.5 else order + order[:1]
        self._destroy(sequences)
        return order

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """Returns a negative, zero, small, full or far too large size."""
        self._may_raise()
        return self._rng.choice((-3, 0, 1, 2, max_tokens, 10**9))

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """Returns a random candidate."""
        self._may_raise()
        victim = self._rng.choice(candidates)
        self._destroy(candidates)
        return victim

    def charge(self, sequence: SequenceState, num_tokens: int, /) -> None:
        """Checks that tokens are charged."""
        assert num_tokens, "charged for nothing"
        self._may_raise()

    def _may_raise(self) -> None:
        if self._rng.random() < _CHANCE:
            raise Hostility

    def _destroy(self, given: Sequence[SequenceState]) -> None:
        assert isinstance(given, list)
        self._rng.choice((given.clear, given.reverse, lambda: given.extend(given)))()
