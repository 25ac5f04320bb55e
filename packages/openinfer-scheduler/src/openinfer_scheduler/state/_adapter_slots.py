"""Which adapters the running sequences use, as places in a table of the executor."""

from collections import OrderedDict


class AdapterSlots:
    """Counts the running sequences of each adapter, and gives each adapter a place.

    Args:
        num_slots: distinct adapters at most; None: no limit, and no places.
    """

    def __init__(self, num_slots: int | None) -> None:
        self._num_users: dict[bytes, int] = {}
        self._slots: dict[bytes, int] = {}
        """Places of adapters in use, and of idle ones whose place nobody took yet."""
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        """Adapters with a place and no user, the longest idle first."""
        self._free = list(range(num_slots - 1, -1, -1)) if num_slots is not None else None

    def has_room(self, uid: bytes) -> bool:
        """Whether a sequence with this adapter may run now."""
        return self._free is None or bool(self._free or self._idle) or uid in self._num_users

    def take(self, uid: bytes) -> int | None:
        """Adds a user of the adapter; its place, the old one if that is still there."""
        self._num_users[uid] = self._num_users.get(uid, 0) + 1
        if self._free is None:
            return None
        self._idle.pop(uid, None)
        if uid not in self._slots:
            if self._free:
                self._slots[uid] = self._free.pop()
            else:
                idle, _ = self._idle.popitem(last=False)
                self._slots[uid] = self._slots.pop(idle)
        return self._slots[uid]

    def give_back(self, uid: bytes) -> None:
        """Takes a user away."""
        left = self._num_users.pop(uid) - 1
        if left:
            self._num_users[uid] = left
        elif self._free is not None:
            self._idle[uid] = None
