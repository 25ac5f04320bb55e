"""Seeds of the requests that bring none."""

import secrets

_MASK = 2**64 - 1
_STRIDE = 0x9E3779B97F4A7C15


class Seeds:
    """Consecutive numbers, scattered (the finalizer of splitmix64), so that no two are equal.

    Args:
        first: equal ones give equal seeds; None: a random one.
    """

    def __init__(self, first: int | None) -> None:
        self._number = secrets.randbits(64) if first is None else first

    def draw(self) -> int:
        """The next seed, in [0, 2**64)."""
        self._number = bits = (self._number + _STRIDE) & _MASK
        bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _MASK
        return bits ^ (bits >> 31)
