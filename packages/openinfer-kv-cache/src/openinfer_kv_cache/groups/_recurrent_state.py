"""State groups: one block for each sequence, overwritten by every step, and checkpoints of it.

    hit:    checkpoint ──copy before the forward──> the sequence's block
    later:  the sequence's block ──copy after the forward──> checkpoint at a resume point

The cache copies nothing itself: copies are data in a `Reservation`, and the executor makes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

import numpy as np

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.arena._arena import SlabPool
from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.eviction._policy import ANONYMOUS, CacheUse
from openinfer_kv_cache.groups._resume_points import ResumePoints
from openinfer_kv_cache.pool._block_list import Seals
from openinfer_kv_cache.pool._lease import CachedLease, MutableLease, SealedLease

_NO_BLOCKS = np.empty(0, np.int32)
_EVERYTHING = 2**62


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A copy of one block of a state group, made on the step's stream.

    Attributes:
        group: index of the group.
        source: block to read.
        target: block to write.
        position: number of positions of the sequence that the copied state covers.
    """

    group: int
    source: int
    target: int
    position: int


class StepCopies(NamedTuple):
    """State copies of one step.

    Attributes:
        before: copies from checkpoints into sequences' blocks, before the forward pass.
        after: copies from sequences' blocks into checkpoints, after the forward pass.
    """

    before: Sequence[BlockCopy]
    after: Sequence[BlockCopy]


NO_COPIES = StepCopies((), ())


@dataclass(slots=True)
class _Checkpoint:
    position: int
    step_id: int
    lease: MutableLease | SealedLease | CachedLease
    is_lasting: bool
    """Whether the checkpoint is kept when a later one is made."""
    is_written: bool = False


@final
class StateRow:
    """One sequence's block in a state group (its row), and its checkpoints.

    A checkpoint at a resume point of known tokens is sealed when its step is planned and published
    when the next step begins, like any block. A checkpoint of growing output stays private until
    `settle` delivers its tokens, and only the newest is kept. Checkpoints are optional: if there is
    no room for one, the sequence continues without it.

    Attributes:
        num_blocks: 1 once the row is allocated, else 0.
    """

    __slots__ = (
        "_checkpoints",
        "_group",
        "_namespace",
        "_passed",
        "_points",
        "_pool",
        "_restored_in",
        "_row",
        "_source",
        "_tail",
        "_use",
        "num_blocks",
    )

    def __init__(
        self,
        pool: SlabPool,
        source: CachedLease,
        points: ResumePoints | None,
        *,
        group: int,
        num_tokens: int,
    ) -> None:
        """Starts at checkpoint `source`; makes no checkpoints if `points` is None."""
        self._pool = pool
        self._namespace = pool.namespace
        self._group = group
        self._points = points
        self._row: MutableLease | None = None
        self._source: CachedLease | None = source
        self._restored_in: int | None = None
        self._checkpoints: list[_Checkpoint] = []
        self._tail: CachedLease | None = None
        """Newest published checkpoint of growing output; the next one replaces it."""
        self._use = ANONYMOUS
        self._passed = num_tokens
        """Number of planned positions."""
        self.num_blocks = 0

    @property
    def ids(self) -> BlockIds:
        """[0 or 1] the row's block."""
        return _NO_BLOCKS if self._row is None else self._row.ids

    @property
    def num_dropped(self) -> tuple[int, ...]:
        """See `SequenceBlocks.num_dropped`."""
        return (0,)

    @property
    def num_sealed(self) -> int:
        """Number of planned positions."""
        return self._passed

    @property
    def capacity(self) -> int:
        """Number of positions that can be planned before a copy is due."""
        stop = self._next_stop()
        return _EVERYTHING if stop is None else stop - 1

    def num_short(self, end: int) -> int:
        """Returns 1 until the row is allocated, then 0."""
        return int(self._row is None)

    def num_to_come(self, end: int) -> int:
        """See `SequenceBlocks.num_to_come`."""
        return self.num_short(end)

    def grow(self, ids: BlockIds) -> None:
        """Makes this block the row."""
        if len(ids):
            self._row = MutableLease(self._pool, ids)
            self.num_blocks = 1

    def plan(
        self, step_id: int, keys: BlockKeys, end: int, reach: int | None, copies: StepCopies
    ) -> StepCopies:
        """Returns `copies` plus this group's copies before and after the step's forward pass.

        Args:
            step_id: the step being planned.
            keys: the request's keys.
            end: upper bound of the planned positions.
            reach: exact number of planned positions; None if unknown.
            copies: the copies of other groups.
        """
        assert self._row is not None, "the row is not allocated"
        row = int(self._row.ids[0])
        before, after = copies
        if self._source is not None and len(self._source) and self._restored_in is None:
            self._restored_in = step_id
            source = int(self._source.ids[0])
            before = [*before, BlockCopy(self._group, source, row, self._passed)]
        stop = self._next_stop()
        self._passed = max(self._passed, end)
        if reach is not None and reach == stop:
            target = self._try_checkpoint(step_id, keys, reach)
            if target is not None:
                after = [*after, BlockCopy(self._group, row, target, reach)]
        return StepCopies(before, after)

    def publish(self) -> None:
        """Indexes the sealed checkpoints."""
        for checkpoint in self._checkpoints:
            if isinstance(checkpoint.lease, SealedLease):
                checkpoint.lease = checkpoint.lease.publish()

    def seal_known(self, keys: BlockKeys, num_known: int) -> None:
        """Does nothing: `plan` seals checkpoints."""

    def land_step(self, step_id: int, keys: BlockKeys, seals: Seals) -> None:
        """Records that the copies of a step have been made."""
        if self._restored_in == step_id and self._source is not None:
            self._release(self._source)
            self._source = None
        pending = []
        for checkpoint in self._checkpoints:
            if checkpoint.step_id == step_id and isinstance(checkpoint.lease, CachedLease):
                self._release(checkpoint.lease)
            else:
                checkpoint.is_written |= checkpoint.step_id == step_id
                pending.append(checkpoint)
        self._checkpoints = pending

    def settle(self, keys: BlockKeys, num_computed: int, *, is_cacheable: bool) -> None:
        """Indexes the checkpoints worth keeping among those whose tokens have become known."""
        known = [c for c in self._private() if c.position <= num_computed]
        for checkpoint in known:
            self._checkpoints.remove(checkpoint)
            assert isinstance(checkpoint.lease, MutableLease)
            if not is_cacheable or not (checkpoint.is_lasting or checkpoint is known[-1]):
                checkpoint.lease.close()
                continue
            key = self._key(keys, checkpoint.position)
            sealed, rest = checkpoint.lease.seal([key], self._namespace)
            rest.close()
            if checkpoint.is_lasting:
                self._release(sealed.publish())
            else:
                self._release_tail()
                self._tail = sealed.publish()

    def release(self) -> None:
        """Releases all blocks; published checkpoints stay cached."""
        for checkpoint in self._checkpoints:
            self._release(checkpoint.lease)
        self._checkpoints.clear()
        for lease in (self._tail, self._source, self._row):
            if lease is not None:
                self._release(lease)

    def attribute_to(self, use: CacheUse) -> None:
        """Sets the use that is reported to the eviction policy."""
        self._use = use

    def _release(self, lease: MutableLease | SealedLease | CachedLease) -> None:
        if isinstance(lease, CachedLease):
            lease.note_use(self._use)
        lease.close()

    def _next_stop(self) -> int | None:
        """Returns where the next copy is due; None if nowhere, or if the cache was reset."""
        if self._points is None or self._namespace != self._pool.namespace:
            return None
        return self._points.stop_after(self._passed)

    def _try_checkpoint(self, step_id: int, keys: BlockKeys, position: int) -> int | None:
        is_known = position <= keys.num_tokens
        if is_known and self._pool.has(self._key(keys, position)):
            return None
        assert self._points is not None, "the sequence makes no checkpoints"
        is_lasting = self._points.after(position - 1) == position
        if not is_lasting:
            self._release_outdated()
        ids = self._pool.try_take_spare()
        if ids is None:
            return None
        block, lease = int(ids[0]), MutableLease(self._pool, ids)
        checkpoint = _Checkpoint(position, step_id, lease, is_lasting=is_lasting)
        if is_known and is_lasting:
            checkpoint.lease, rest = lease.seal([self._key(keys, position)], self._namespace)
            rest.close()
        self._checkpoints.append(checkpoint)
        return block

    def _private(self) -> list[_Checkpoint]:
        return [c for c in self._checkpoints if isinstance(c.lease, MutableLease)]

    def _release_outdated(self) -> None:
        """Releases all written checkpoints of output but the newest."""
        written = [c for c in self._private() if c.is_written and not c.is_lasting]
        for checkpoint in written[:-1]:
            self._checkpoints.remove(checkpoint)
            checkpoint.lease.close()

    def _release_tail(self) -> None:
        if self._tail is not None:
            self._tail.release_front(np.zeros(1, np.bool_)).close()
            self._tail = None

    def _key(self, keys: BlockKeys, position: int) -> bytes:
        block = position // keys.tokens_per_block
        return keys.slice(block - 1, block)[0]
