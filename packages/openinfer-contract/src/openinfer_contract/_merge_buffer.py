"""Parts that come one by one and are wanted as one."""

from typing import Generic, Protocol, TypeVar


class _Mergeable(Protocol):
    def merged(self: "M", later: "M", /) -> "M": ...


M = TypeVar("M", bound=_Mergeable)


class MergeBuffer(Generic[M]):
    """Parts that merge by copying, each copied about log n times, in about log n objects.

    A part is merged with the one before it once it is as large. Not thread-safe.
    """

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[tuple[int, M]] = []

    def add(self, part: M, size: int) -> None:
        """Puts a part behind the others; `size` is its number of tokens."""
        parts = self._parts
        parts.append((size, part))
        while len(parts) > 1 and parts[-2][0] <= parts[-1][0]:
            self._merge_last()

    def merge_all(self) -> M | None:
        """All parts as one; None if there are none."""
        while len(self._parts) > 1:
            self._merge_last()
        return self._parts[0][1] if self._parts else None

    def _merge_last(self) -> None:
        size, later = self._parts.pop()
        earlier_size, earlier = self._parts[-1]
        self._parts[-1] = (earlier_size + size, earlier.merged(later))
