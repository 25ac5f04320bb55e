"""Sampling seeds for requests that bring none."""

import secrets

_MASK = 2**64 - 1
_STRIDE = 0x9E3779B97F4A7C15


class Seeds:
    """Draws distinct 64-bit seeds: consecutive numbers through the finalizer of splitmix64.

    Args:
        first: start of the sequence; equal values give equal seeds. None: a random start.
    """

    def __init__(self, first: int | None) -> None:
        self._number = secrets.randbits(64) if first is None else first

    def draw(self) -> int:
        """Returns the next seed, in [0, 2**64)."""
        self._number = bits = (self._number + _STRIDE) & _MASK
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
        return bits ^ (bits >> 31)
