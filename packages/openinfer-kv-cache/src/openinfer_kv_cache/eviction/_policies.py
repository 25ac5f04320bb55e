"""Built-in eviction policies besides least recently used: `lfu` and `priority`."""

import math
from collections.abc import Callable

import numpy as np

from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.eviction._policy import CacheUse, EvictionPolicy, EvictionRank

DEMOTED, ORDINARY, SESSION, PINNED = range(4)


class FrequencyEviction:
    """Evicts the least frequently used block first; the weight of a use decays.

    A use counts 1, and half as much after each `half_life_s`. The score is the logarithm of the
    sum, discounted to time zero. There, decay changes all scores alike, so their order stays valid.

    Args:
        clock: monotonic seconds.
        half_life_s: seconds after which a use counts half.
    """

    def __init__(self, clock: Callable[[], float], *, half_life_s: float = 600.0) -> None:
        if not half_life_s > 0:
            raise ValueError(f"half_life_s must be positive, got {half_life_s}")
        self.clock = clock
        self._half_life_s = half_life_s

    def attach(self, num_blocks: int, /) -> None:
        """See `EvictionPolicy`."""
        self._uses = np.full(num_blocks, -np.inf)

    def stored(self, block_ids: BlockIds, /) -> None:
        """See `EvictionPolicy`."""
        self._uses[block_ids] = -np.inf

    def used(self, block_ids: BlockIds, use: CacheUse, /) -> None:
        """See `EvictionPolicy`."""
        now = self.clock() / self._half_life_s
        self._uses[block_ids] = np.logaddexp2(self._uses[block_ids], now)

    def rank(self, block_id: int, /) -> EvictionRank:
        """See `EvictionPolicy`."""
        return EvictionRank((float(self._uses[block_id]),))


class PriorityEviction:
    """Evicts by the hints, session and priority of requests, then least recently used.

    The order is: demoted blocks, ordinary blocks, blocks of a session, pinned blocks. Within one of
    these classes, blocks of less important requests are evicted first, then the least recently
    used. Session blocks and pinned blocks become ordinary when they have not been used for their
    time to live. A "demote" hint has no effect on a block that another session, or another request
    without a session, has used.

    Args:
        clock: monotonic seconds.
        session_ttl_s: seconds after its last use for which a session's block is preferred.
        pin_ttl_s: seconds after its last use for which a pinned block is preferred.
    """

    def __init__(
        self, clock: Callable[[], float], *, session_ttl_s: float = 300.0, pin_ttl_s: float = 3600.0
    ) -> None:
        for name, ttl_s in (("session_ttl_s", session_ttl_s), ("pin_ttl_s", pin_ttl_s)):
            if not ttl_s >= 0:
                raise ValueError(f"{name} must not be negative, got {ttl_s}")
        self.clock = clock
        self._session_ttl_s = session_ttl_s
        self._pin_ttl_s = pin_ttl_s
        self._num_uses = 0

    def attach(self, num_blocks: int, /) -> None:
        """See `EvictionPolicy`."""
        self._used_at = np.zeros(num_blocks)
        self._session_until = np.zeros(num_blocks)
        self._pinned_until = np.zeros(num_blocks)
        self._priority = np.zeros(num_blocks)
        self._user = np.zeros(num_blocks, np.int64)
        self._is_shared = np.zeros(num_blocks, np.bool_)
        self._is_demoted = np.zeros(num_blocks, np.bool_)
        self.stored(np.arange(num_blocks, dtype=np.int32))

    def stored(self, block_ids: BlockIds, /) -> None:
        """See `EvictionPolicy`."""
        self._used_at[block_ids] = self.clock()
        self._session_until[block_ids] = self._pinned_until[block_ids] = -math.inf
        self._priority[block_ids] = math.inf
        self._user[block_ids] = 0
        self._is_shared[block_ids] = self._is_demoted[block_ids] = False

    def used(self, block_ids: BlockIds, use: CacheUse, /) -> None:
        """See `EvictionPolicy`."""
        now = self.clock()
        self._used_at[block_ids] = now
        self._priority[block_ids] = np.minimum(self._priority[block_ids], use.priority)
        user = self._name_user(use.session_id)
        before = self._user[block_ids]
        self._is_shared[block_ids] |= (before != 0) & (before != user)
        self._user[block_ids] = user
        if use.hint == "demote":
            own = block_ids[~self._is_shared[block_ids]]
            self._is_demoted[own] = True
            self._session_until[own] = self._pinned_until[own] = -math.inf
            return
        self._is_demoted[block_ids] = False
        if use.hint == "pin":
            self._pinned_until[block_ids] = now + self._pin_ttl_s
        if use.session_id:
            self._session_until[block_ids] = now + self._session_ttl_s

    def rank(self, block_id: int, /) -> EvictionRank:
        """See `EvictionPolicy`."""
        now, until = self.clock(), math.inf
        kind = DEMOTED if self._is_demoted[block_id] else ORDINARY
        if now < self._pinned_until[block_id]:
            kind, until = PINNED, float(self._pinned_until[block_id])
        elif now < self._session_until[block_id]:
            kind, until = SESSION, float(self._session_until[block_id])
        priority, used_at = self._priority[block_id], self._used_at[block_id]
        return EvictionRank((kind, -float(priority), float(used_at)), until)

    def _name_user(self, session_id: str) -> int:
        """Returns a number for the session, or a new number for a request without one. Never 0."""
        if session_id:
            return hash(session_id) | 1
        self._num_uses += 1
        return 2 * self._num_uses


EVICTION_POLICIES: dict[str, Callable[[Callable[[], float]], EvictionPolicy] | None] = {
    "lru": None,
    "lfu": FrequencyEviction,
    "priority": PriorityEviction,
}
"""Policy name to factory, which takes a clock. None stands for the built-in LRU queue."""
