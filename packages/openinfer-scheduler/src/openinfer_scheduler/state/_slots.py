"""Rows of the executor's tables."""


class Slots:
    """Hands out slot numbers, and remembers which the executor must be told are over.

    A slot that was given back is free at once: the plan that starts its next sequence, or an
    earlier one, lists it in `ends`.
    """

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._over: list[int] = []

    @property
    def num_free(self) -> int:
        """Slots that a sequence can take."""
        return len(self._free)

    @property
    def num_used(self) -> int:
        """Slots that hold a sequence as far as the executor knows or will be told."""
        return self._num_slots - len(self._free) + len(self._over)

    @property
    def has_over(self) -> bool:
        """Whether a plan must still say that some slot is over."""
        return bool(self._over)

    def take(self) -> int:
        """A free slot."""
        return self._free.pop()

    def give_back(self, slot: int) -> None:
        """The slot's sequence is gone; a plan has to say so."""
        self._free.append(slot)
        self._over.append(slot)

    def announce(self) -> tuple[int, ...]:
        """The slots for the `ends` of the plan being made."""
        over = tuple(self._over)
        self._over.clear()
        return over

    def revert_announce(self, ends: tuple[int, ...]) -> None:
        """The plan with these `ends` is taken back."""
        self._over = [*ends, *self._over]

    def revert_take(self, slot: int) -> None:
        """The plan that started a sequence in `slot` is taken back; the slot is still held."""
        self._free.append(slot)

    def revert_give_back(self, slot: int) -> None:
        """The same, after the sequence had already left: nobody needs to be told."""
        self._over.remove(slot)
