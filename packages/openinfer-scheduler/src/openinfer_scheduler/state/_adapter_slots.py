"""The adapters that running sequences use, as slots of an adapter table in the executor."""

from collections import OrderedDict


class AdapterSlots:
    """Counts the running sequences of each adapter and assigns each adapter a slot.

    Args:
        num_slots: upper bound on distinct adapters in use. None: no limit and no slots.
    """

    def __init__(self, num_slots: int | None) -> None:
        self._num_users: dict[bytes, int] = {}
        self._slots: dict[bytes, int] = {}
        """Slots of adapters in use, and of idle ones whose slot was not reassigned yet."""
        self._idle: OrderedDict[bytes, None] = OrderedDict()
        """Adapters with a slot and no user, the longest idle first."""
        self._free = list(range(num_slots - 1, -1, -1)) if num_slots is not None else None

    def has_room(self, uid: bytes) -> bool:
        """Returns whether a sequence with this adapter may start now."""
        return self._free is None or bool(self._free or self._idle) or uid in self._num_users

    def take(self, uid: bytes) -> int | None:
        """Adds a user of the adapter and returns its slot. An idle adapter keeps its slot."""
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

    def release(self, uid: bytes) -> None:
        """Removes a user of the adapter."""
        num_users = self._num_users.pop(uid) - 1
        if num_users:
            self._num_users[uid] = num_users
        elif self._free is not None:
            self._idle[uid] = None
