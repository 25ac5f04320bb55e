"""The leases of one sequence, in the order of its block table.

    [ cached ............ | sealed ........ | mutable ............... ]
      hit, then published   by the newest     being written, and
      blocks                step, until the   spare capacity
                            next begins

The object outlives its request when steps in flight still write to it: the step ledger keeps it
until then.
"""

from collections.abc import Sequence

import numpy as np

from openinfer_kv_cache._eviction import BlockIds
from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache._lease import CachedLease, MutableLease, SealedLease
from openinfer_kv_cache._pool import BlockPool

_NO_BLOCKS = np.empty(0, np.int32)


class SequenceBlocks:
    """Blocks of one sequence and their way from mutable to cached.

    Attributes:
        num_blocks: length of the block table.
        num_sealed: leading blocks that are sealed or cached.
        namespace: the pool's when the sequence was opened; blocks are indexed under no other.
        num_landed: leading blocks whose every position is known to be computed.
        is_closed: the request is over, whether or not a step in flight keeps the blocks.
    """

    __slots__ = (
        "_cached",
        "_mutable",
        "_pool",
        "_sealed",
        "is_closed",
        "namespace",
        "num_blocks",
        "num_landed",
        "num_sealed",
    )

    def __init__(self, pool: BlockPool, cached: CachedLease) -> None:
        self._pool = pool
        self._cached = cached
        self._sealed: SealedLease | None = None
        self._mutable = MutableLease(pool, _NO_BLOCKS)
        self.namespace = pool.namespace
        self.num_blocks = self.num_sealed = self.num_landed = len(cached)
        self.is_closed = False

    @property
    def ids(self) -> BlockIds:
        """[num_blocks] the block table, a copy."""
        sealed = _NO_BLOCKS if self._sealed is None else self._sealed.ids
        return np.concatenate((self._cached.ids, sealed, self._mutable.ids))

    def try_grow(self, num: int) -> BlockIds | None:
        """Append `num` blocks; None when there is no room."""
        if num == 0:
            return _NO_BLOCKS
        lease = MutableLease.try_take(self._pool, num)
        if lease is None:
            return None
        ids = lease.ids
        self._mutable = self._mutable.join(lease)
        self.num_blocks += num
        return ids

    def seal(self, keys: Sequence[bytes]) -> None:
        """Seal the next `len(keys)` blocks, which the newest step completes."""
        assert self._sealed is None, "an older step's blocks were not published"
        self._sealed, self._mutable = self._mutable.seal(keys, self.namespace)
        self.num_sealed += len(keys)

    def publish(self) -> None:
        """Index what is sealed."""
        if self._sealed is not None:
            self._cached = self._cached.join(self._sealed.publish())
            self._sealed = None

    def announce(self, keys: BlockKeys, start: int, stop: int) -> None:
        """Tell who asks for events that blocks `[start, stop)` are indexed and written."""
        events = self._pool.events
        if events is not None and self.namespace == self._pool.namespace:
            events.landed(keys, start, stop)

    def withdraw(self, num_sealed: int) -> None:
        """Make blocks from the `num_sealed`-th on mutable again, landed ones excepted."""
        excess = self.num_sealed - max(num_sealed, self.num_landed)
        if excess <= 0:
            return
        if self._sealed is not None:
            excess = len(self._sealed)
            lease = self._sealed.unseal()
            self._sealed = None
        else:
            self._cached, lease = self._cached.withdraw(excess)
        self._mutable = lease.join(self._mutable)
        self.num_sealed -= excess

    def give_back(self, num: int) -> None:
        """Free the last `num` blocks."""
        if num:
            self._mutable = self._mutable.give_back(num)
            self.num_blocks -= num

    def release(self) -> None:
        """Let go of everything, children before parents."""
        self._mutable.close()
        if self._sealed is not None:
            self._sealed.close()
        self._cached.close()
