"""Indices in the executor's per-slot tables."""


class Slots:
    """Slot indices, free or taken, and the ended ones that the next plan must announce.

    A released slot can be taken again at once: the plan that starts its next sequence, or an
    earlier one, lists the slot in `ends`.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._unannounced: list[int] = []

    @property
    def num_free(self) -> int:
        """Number of slots that a sequence can take."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Number of slots that hold a sequence, or whose end no plan has announced yet."""
        return self._num_slots - len(self._free) + len(self._unannounced)

    @property
    def has_unannounced_ends(self) -> bool:
        """Whether a plan must still tell the executor that a slot's sequence has ended."""
        return bool(self._unannounced)

    def take(self) -> int:
        """Takes a free slot."""
        return self._free.pop()

    def release(self, slot: int) -> None:
        """Frees a slot whose sequence is gone; the next plan announces the end."""
        self._free.append(slot)
        self._unannounced.append(slot)

    def take_ends(self) -> tuple[int, ...]:
        """Returns the slots for `ends` of the plan being built; they count as announced."""
        ends = tuple(self._unannounced)
        self._unannounced.clear()
        return ends
