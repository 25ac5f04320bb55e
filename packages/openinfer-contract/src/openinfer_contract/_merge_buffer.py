"""A buffer that merges the parts of a stream until the reader takes them."""

from typing import Generic, Protocol, TypeVar


class _Mergeable(Protocol):
    def merged(self: "M", later: "M", /) -> "M": ...


M = TypeVar("M", bound=_Mergeable)


class MergeBuffer(Generic[M]):
    """Parts of a stream that are merged when they are read.

    Merging copies both parts. Merging each new part with everything before it would take quadratic
    time, so a part is merged with the one before it only when it is at least as large. For n parts
    each is copied about log2(n) times, and about log2(n) objects are kept. Not thread-safe.
    """

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[tuple[int, M]] = []

    def add(self, part: M, size: int) -> None:
        """Appends a part; `size` is its number of tokens."""
        parts = self._parts
        parts.append((size, part))
        while len(parts) > 1 and parts[-2][0] <= parts[-1][0]:
            self._merge_last()

    def merge_all(self) -> M | None:
        """Returns all parts merged into one, or None if there are none."""
        while len(self._parts) > 1:
            self._merge_last()
        return self._parts[0][1] if self._parts else None

    def _merge_last(self) -> None:
        size, later = self._parts.pop()
        earlier_size, earlier = self._parts[-1]
        self._parts[-1] = (earlier_size + size, earlier.merged(later))
