"""Leases: spans of blocks of one sequence. The type of a lease is the state of its blocks.

                  seal                     publish
    MutableLease ──────> SealedLease ──────────────> CachedLease <── match (prefix hit)
      │                      │                          │
      v                      v                          v
    close: free            close: free                close: evictable (duplicates: free)
                                                      release_front: as close, or free at once

    mutable   private, being written
    sealed    full of known tokens; the write is planned and the keys are fixed, but not indexed yet
    cached    indexed and shared, or the private duplicate of an indexed block

A transition consumes its lease; a consumed lease raises `LeaseUsed`. The pool counts open leases,
so `KVCache.assert_idle` finds a lease that was garbage-collected instead of closed.
"""

from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from openinfer_kv_cache.errors import LeaseUsed
from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.eviction._policy import CacheUse
from openinfer_kv_cache.pool._pool import BlockPool


class _Lease:
    __slots__ = ("_ids", "_is_open", "_pool")

    def __init__(self, pool: BlockPool, ids: BlockIds) -> None:
        self._pool = pool
        self._ids = ids
        self._is_open = True
        pool.num_open_leases += 1

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def ids(self) -> BlockIds:
        """[num_blocks] ids in the order of their positions. Owned by the lease: do not write."""
        if not self._is_open:
            raise LeaseUsed(f"{type(self).__name__} was consumed or closed")
        return self._ids

    def _consume(self) -> BlockIds:
        ids = self.ids
        self._is_open = False
        self._pool.num_open_leases -= 1
        return ids


@final
class MutableLease(_Lease):
    """Private blocks that steps write to."""

    __slots__ = ()

    @classmethod
    def try_take(cls, pool: BlockPool, num: int) -> "MutableLease | None":
        """Leases `num` blocks from the pool, evicting if needed. None if there is no room."""
        ids = pool.try_take(num)
        return None if ids is None else cls(pool, ids)

    def extend(self, ids: BlockIds) -> None:
        """Appends blocks that were just taken from the pool."""
        self._ids = np.concatenate((self.ids, ids))

    def release_front(self, num: int) -> "MutableLease":
        """Frees the first `num` blocks. No step in flight may read or write them."""
        ids = self._consume()
        self._pool.release(ids[:num])
        return MutableLease(self._pool, ids[num:])

    def seal(self, keys: Sequence[bytes], namespace: int) -> "tuple[SealedLease, MutableLease]":
        """Splits off the first `len(keys)` blocks, whose tokens are known and planned."""
        ids, num = self._consume(), len(keys)
        assert num <= len(ids), "more keys than blocks"
        sealed = SealedLease(self._pool, ids[:num], keys, namespace)
        return sealed, MutableLease(self._pool, ids[num:])

    def close(self) -> None:
        """Frees the blocks."""
        self._pool.release(self._consume())


@final
class SealedLease(_Lease):
    """Full blocks of a planned step. Other sequences cannot find them yet."""

    __slots__ = ("_keys", "_namespace")

    def __init__(
        self, pool: BlockPool, ids: BlockIds, keys: Sequence[bytes], namespace: int
    ) -> None:
        super().__init__(pool, ids)
        self._keys = keys
        self._namespace = namespace

    def publish(self, *, above: int | None = None) -> "CachedLease":
        """Indexes the blocks, so that sequences of later steps may share them.

        Args:
            above: the indexed block that the first block continues; None if there is none.
        """
        ids = self._consume()
        anchors = self._pool.register(ids, self._keys, self._namespace, above=above)
        return CachedLease(self._pool, ids, anchors)

    def close(self) -> None:
        """Frees the blocks."""
        self._pool.release(self._consume())


@final
class CachedLease(_Lease):
    """Indexed blocks, or duplicates of indexed blocks.

    If another block was indexed under the same key first, this lease's block is a duplicate. Its
    sequence keeps using it, and the lease also holds its *anchor*, the indexed block.
    """

    __slots__ = ("_anchors",)

    def __init__(self, pool: BlockPool, ids: BlockIds, anchors: BlockIds) -> None:
        super().__init__(pool, ids)
        self._anchors = anchors

    @property
    def _has_duplicates(self) -> bool:
        return self._anchors is not self._ids

    @classmethod
    def match(cls, pool: BlockPool, keys: Sequence[bytes]) -> "CachedLease":
        """Pins the longest indexed prefix of a chain of keys; empty if there is none."""
        ids = pool.find(keys)
        return cls(pool, ids, ids)

    @classmethod
    def hold(cls, pool: BlockPool, keys: Sequence[bytes]) -> "CachedLease":
        """Pins blocks that are all indexed and need not be consecutive."""
        ids = pool.lookup(keys)
        return cls(pool, ids, ids)

    @property
    def last_anchor(self) -> int | None:
        """The indexed block that the next block would continue; None for an empty lease."""
        return int(self._anchors[-1]) if len(self._anchors) else None

    def note_reuse(self) -> None:
        """Counts a prefix hit on these blocks, which `match` has found."""
        self._pool.note_reuse(self._ids)

    def note_use(self, use: CacheUse) -> None:
        """Reports the use of the blocks to the pool's eviction policy."""
        self._pool.note_use(self._anchors, use)

    def join(self, other: "CachedLease") -> "CachedLease":
        """Returns both spans as one lease, `other` last. Consumes both."""
        has_duplicates = self._has_duplicates or other._has_duplicates
        anchors = np.concatenate((self._anchors, other._anchors)) if has_duplicates else None
        ids = np.concatenate((self._consume(), other._consume()))
        return CachedLease(self._pool, ids, ids if anchors is None else anchors)

    def release_front(self, is_kept: npt.NDArray[np.bool_]) -> "CachedLease":
        """Releases the first `len(is_kept)` blocks. Blocks that are not kept leave the index too.

        Blocks that other sequences hold stay indexed, and so do the anchors of duplicates.
        """
        num = len(is_kept)
        own, anchors = self._ids[:num], self._anchors[:num]
        rest = self._anchors[num:]
        ids = self._consume()[num:]
        is_twin = own != anchors
        self._pool.release(own[is_twin])
        self._pool.release(anchors[is_kept | is_twin])
        self._pool.release_uncached(anchors[~(is_kept | is_twin)])
        return CachedLease(self._pool, ids, rest if (rest != ids).any() else ids)

    def close(self, rest: MutableLease | None = None) -> None:
        """Releases the blocks: indexed ones become evictable once unused, duplicates become free.

        Args:
            rest: the private blocks that follow, closed in the same call, which halves the cost.
        """
        ids = self._consume()
        if self._has_duplicates:
            self._pool.release(ids[ids != self._anchors])
        held = self._anchors
        if rest is not None:
            held = np.concatenate((held, rest._consume()))
        self._pool.release(held)
