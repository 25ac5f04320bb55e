"""The worst policy there can be: a scheduler has to stay right whatever a policy says."""

from collections.abc import Sequence
from random import Random

from openinfer_scheduler import SequenceState


class HostilePolicy:
    """Any order, any chunk, any victim, another one every time."""

    def __init__(self, rng: Random) -> None:
        """Draws everything from `rng`, shared with the caller."""
        self._rng = rng

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Sequence[SequenceState]:
        """A shuffle."""
        return self._rng.sample(list(sequences), len(sequences))

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """Negative, nothing, little, everything or far too much."""
        return self._rng.choice((-3, 0, 1, 2, max_tokens, 10**9))

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """Anybody."""
        return self._rng.choice(candidates)

    def charge(self, sequence: SequenceState, num_tokens: int, /) -> None:
        """Holds the scheduler to charge for something."""
        assert num_tokens, "charged for nothing"
