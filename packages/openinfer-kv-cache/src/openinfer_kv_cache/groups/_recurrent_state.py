"""The rows of a group whose state every step overwrites, and the copies made of it.

    hit:    checkpoint ──copy before the forward──> row
    later:  row ──copy after the forward──> checkpoint of a resume point

The cache moves nothing: copies are data in a `Reservation`, for whoever runs the step.
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
    """One block of a state group to copy, on the stream of the step that says so.

    Attributes:
        group: index of the group.
        source: block to read.
        target: block to write.
        position: the state copied is that after so many positions of the sequence.
    """

    group: int
    source: int
    target: int
    position: int


class StepCopies(NamedTuple):
    """The states that a step copies.

    Attributes:
        before: before the forward, into rows.
        after: after it, out of rows.
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
    """Whether it stays when a later one is made."""
    is_written: bool = False


@final
class StateRow:
    """One sequence's row in a state group, and its checkpoints on the way to the index.

    A checkpoint at a resume point of known tokens is sealed when its step is planned and published
    when the next one begins, like any block. One of growing output stays private until `settle`
    brings the tokens, and only the newest is kept. Checkpoints are optional: where there is no room
    for one, the sequence goes on without it.

    Attributes:
        num_blocks: 1 once the row exists.
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
        """Start at a checkpoint, or with none at position 0; `points` None: leave none."""
        self._pool = pool
        self._namespace = pool.namespace
        self._group = group
        self._points = points
        self._row: MutableLease | None = None
        self._source: CachedLease | None = source
        self._restored_in: int | None = None
        self._checkpoints: list[_Checkpoint] = []
        self._tail: CachedLease | None = None
        """The newest published checkpoint of growing output; the next one replaces it."""
        self._use = ANONYMOUS
        self._passed = num_tokens
        """Positions below it are planned."""
        self.num_blocks = 0

    @property
    def ids(self) -> BlockIds:
        """[0 or 1] the row."""
        return _NO_BLOCKS if self._row is None else self._row.ids

    @property
    def num_dropped(self) -> tuple[int, ...]:
        """See `SequenceBlocks.num_dropped`."""
        return (0,)

    @property
    def num_sealed(self) -> int:
        """Positions that were planned."""
        return self._passed

    @property
    def capacity(self) -> int:
        """Positions that can be planned before a copy is due."""
        stop = self._next_stop()
        return _EVERYTHING if stop is None else stop - 1

    def num_short(self, end: int) -> int:
        """1 until there is a row."""
        return int(self._row is None)

    def num_to_come(self, end: int) -> int:
        """See `SequenceBlocks.num_to_come`."""
        return self.num_short(end)

    def grow(self, ids: BlockIds) -> None:
        """The row is this block."""
        if len(ids):
            self._row = MutableLease(self._pool, ids)
            self.num_blocks = 1

    def plan(
        self, step_id: int, keys: BlockKeys, end: int, reach: int | None, copies: StepCopies
    ) -> StepCopies:
        """Add the copies before and after the step's forward.

        Args:
            step_id: the step being planned.
            keys: the request's keys.
            end: positions below it may be planned.
            reach: exactly these are, or None where that is not known.
            copies: those of other groups.
        """
        assert self._row is not None, "a step without a row"
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
        """Index the checkpoints that are sealed."""
        for checkpoint in self._checkpoints:
            if isinstance(checkpoint.lease, SealedLease):
                checkpoint.lease = checkpoint.lease.publish()

    def seal_known(self, keys: BlockKeys, num_known: int) -> None:
        """Nothing: `plan` seals checkpoints."""

    def land_step(self, step_id: int, keys: BlockKeys, seals: Seals) -> None:
        """The copies of a step have been made."""
        if self._restored_in == step_id and self._source is not None:
            self._let_go(self._source)
            self._source = None
        pending = []
        for checkpoint in self._checkpoints:
            if checkpoint.step_id == step_id and isinstance(checkpoint.lease, CachedLease):
                self._let_go(checkpoint.lease)
            else:
                checkpoint.is_written |= checkpoint.step_id == step_id
                pending.append(checkpoint)
        self._checkpoints = pending

    def settle(self, keys: BlockKeys, num_computed: int, *, is_cacheable: bool) -> None:
        """Tokens have become known: index the checkpoints among them that are worth keeping."""
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
                self._let_go(sealed.publish())
            else:
                self._drop_tail()
                self._tail = sealed.publish()

    def release(self) -> None:
        """Let go of everything; published checkpoints stay cached."""
        for checkpoint in self._checkpoints:
            self._let_go(checkpoint.lease)
        self._checkpoints.clear()
        for lease in (self._tail, self._source, self._row):
            if lease is not None:
                self._let_go(lease)

    def attribute_to(self, use: CacheUse) -> None:
        """Who uses the checkpoints, for the policy of eviction."""
        self._use = use

    def _let_go(self, lease: MutableLease | SealedLease | CachedLease) -> None:
        if isinstance(lease, CachedLease):
            lease.note_use(self._use)
        lease.close()

    def _next_stop(self) -> int | None:
        """Where the next copy is due; None: nowhere, or the cache was reset meanwhile."""
        if self._points is None or self._namespace != self._pool.namespace:
            return None
        return self._points.stop_after(self._passed)

    def _try_checkpoint(self, step_id: int, keys: BlockKeys, position: int) -> int | None:
        is_known = position <= keys.num_tokens
        if is_known and self._pool.has(self._key(keys, position)):
            return None
        assert self._points is not None, "a checkpoint without resume points"
        is_lasting = self._points.after(position - 1) == position
        if not is_lasting:
            self._drop_outdated()
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

    def _drop_outdated(self) -> None:
        """Of the checkpoints of output that are written, keep the newest."""
        written = [c for c in self._private() if c.is_written and not c.is_lasting]
        for checkpoint in written[:-1]:
            self._checkpoints.remove(checkpoint)
            checkpoint.lease.close()

    def _drop_tail(self) -> None:
        if self._tail is not None:
            self._tail.drop(np.zeros(1, np.bool_)).close()
            self._tail = None

    def _key(self, keys: BlockKeys, position: int) -> bytes:
        block = position // keys.tokens_per_block
        return keys.slice(block - 1, block)[0]
