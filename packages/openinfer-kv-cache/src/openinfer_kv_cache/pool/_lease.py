"""Leases: spans of blocks of one request, with the state in the type.

                  seal                     publish
    MutableLease ──────> SealedLease ──────────────> CachedLease <── match (prefix hit)
      │                      │                          │
      v                      v                          v
    close, drop: free      close: free                close: evictable (duplicates: free)
                                                      drop: the same, or free at once

    mutable   private, being written; nobody else knows the blocks
    sealed    full of known tokens; the write is planned, the keys are fixed, not indexed yet
    cached    indexed under its keys and shared, or the private duplicate of a block that is

A transition consumes its handle; a consumed handle raises `LeaseUsed`. The pool counts open leases,
so one that was dropped instead of closed fails `assert_idle`.
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
        """[num_blocks] in the order of their positions; owned by the lease, do not write."""
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
        """Lease `num` blocks from the pool, evicting as needed; None when there is no room."""
        ids = pool.try_take(num)
        return None if ids is None else cls(pool, ids)

    def extend(self, ids: BlockIds) -> None:
        """Add blocks behind, which were just taken from the pool."""
        self._ids = np.concatenate((self.ids, ids))

    def drop(self, num: int) -> "MutableLease":
        """Free the first `num` blocks; nothing in flight may read or write them."""
        ids = self._consume()
        self._pool.release(ids[:num])
        return MutableLease(self._pool, ids[num:])

    def seal(self, keys: Sequence[bytes], namespace: int) -> "tuple[SealedLease, MutableLease]":
        """Split off the first `len(keys)` blocks, whose tokens are known and planned."""
        ids, num = self._consume(), len(keys)
        assert num <= len(ids), "more keys than blocks"
        sealed = SealedLease(self._pool, ids[:num], keys, namespace)
        return sealed, MutableLease(self._pool, ids[num:])

    def close(self) -> None:
        """Free the blocks."""
        self._pool.release(self._consume())


@final
class SealedLease(_Lease):
    """Full blocks of a planned step that no other sequence may see yet."""

    __slots__ = ("_keys", "_namespace")

    def __init__(
        self, pool: BlockPool, ids: BlockIds, keys: Sequence[bytes], namespace: int
    ) -> None:
        super().__init__(pool, ids)
        self._keys = keys
        self._namespace = namespace

    def publish(self, *, above: int | None = None) -> "CachedLease":
        """Index the blocks: sequences of later steps may share them.

        Args:
            above: the indexed block that the first one continues, where such are evicted last.
        """
        ids = self._consume()
        anchors = self._pool.register(ids, self._keys, self._namespace, above=above)
        return CachedLease(self._pool, ids, anchors)

    def close(self) -> None:
        """Free the blocks."""
        self._pool.release(self._consume())


@final
class CachedLease(_Lease):
    """Blocks that the index knows.

    Where another block had the key first, ours is a duplicate: it serves this request to its end,
    and the *anchor*, the block in the index, is held beside it.
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
        """Pin the longest indexed prefix of a chain of keys; empty where nothing is indexed."""
        ids = pool.find(keys)
        return cls(pool, ids, ids)

    @classmethod
    def hold(cls, pool: BlockPool, keys: Sequence[bytes]) -> "CachedLease":
        """Pin blocks that are all indexed, whatever lies between them."""
        ids = pool.lookup(keys)
        return cls(pool, ids, ids)

    @property
    def last_anchor(self) -> int | None:
        """The indexed block that another one would continue."""
        return int(self._anchors[-1]) if len(self._anchors) else None

    def note_reuse(self) -> None:
        """Tell the pool that a sequence begins on these blocks, which `match` has found."""
        self._pool.note_reuse(self._ids)

    def note_use(self, use: CacheUse) -> None:
        """Tell the pool's policy who has used the blocks."""
        self._pool.note_use(self._anchors, use)

    def join(self, other: "CachedLease") -> "CachedLease":
        """Both spans as one, `other` behind; consumes both."""
        has_duplicates = self._has_duplicates or other._has_duplicates
        anchors = np.concatenate((self._anchors, other._anchors)) if has_duplicates else None
        ids = np.concatenate((self._consume(), other._consume()))
        return CachedLease(self._pool, ids, ids if anchors is None else anchors)

    def drop(self, is_kept: npt.NDArray[np.bool_]) -> "CachedLease":
        """Let go of the first `len(is_kept)` blocks; those not kept leave the index too.

        What somebody else holds, or what was indexed before ours, stays as it is.
        """
        num = len(is_kept)
        own, anchors = self._ids[:num], self._anchors[:num]
        rest = self._anchors[num:]
        ids = self._consume()[num:]
        is_twin = own != anchors
        self._pool.release(own[is_twin])
        self._pool.release(anchors[is_kept | is_twin])
        self._pool.discard(anchors[~(is_kept | is_twin)])
        return CachedLease(self._pool, ids, rest if (rest != ids).any() else ids)

    def close(self, rest: MutableLease | None = None) -> None:
        """Let go: indexed blocks become evictable when nobody else holds them, duplicates free.

        Args:
            rest: the private blocks behind these, closed with them: one call costs half of two.
        """
        ids = self._consume()
        if self._has_duplicates:
            self._pool.release(ids[ids != self._anchors])
        held = self._anchors
        if rest is not None:
            held = np.concatenate((held, rest._consume()))
        self._pool.release(held)
