"""`SequenceCache`, one request's part of the cache, and `PrefixHit`.

Positions are absolute. Therefore a step that needs neither a block nor a seal needs no call, and
one `apply` may settle several steps.
"""

from typing import final

from openinfer_kv_cache._keys import BlockKeys, TokenIds, num_ids
from openinfer_kv_cache._steps import Reservation, StepLedger
from openinfer_kv_cache.arena._create_space import BlockSpace
from openinfer_kv_cache.errors import LeaseUsed, StepOrderError
from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.eviction._policy import CacheUse
from openinfer_kv_cache.groups._grouped_blocks import GroupedBlocks
from openinfer_kv_cache.groups._recurrent_state import NO_COPIES
from openinfer_kv_cache.pool._lease import CachedLease
from openinfer_kv_cache.pool._origins import TierTokens


@final
class PrefixHit:
    """Cached leading blocks of a request, pinned until the hit is opened or closed.

    Attributes:
        namespace: the index's namespace at the match; a reset changes it and voids the hit.
    """

    __slots__ = ("_has_rows", "_leases", "_num_tokens", "namespace")

    def __init__(
        self,
        leases: tuple[CachedLease, ...],
        *,
        num_tokens: int,
        has_rows: tuple[bool, ...],
        namespace: int,
    ) -> None:
        self._leases: tuple[CachedLease, ...] | None = leases
        self._num_tokens = num_tokens
        self._has_rows = has_rows
        self.namespace = namespace

    @property
    def num_tokens(self) -> int:
        """Number of cached tokens; always less than the request's tokens."""
        self._held()
        return self._num_tokens

    @property
    def block_ids(self) -> tuple[BlockIds, ...]:
        """For each group, the pinned blocks in order; the last one ends at `num_tokens`.

        A window group lacks the leading blocks. A state group has none: the sequence gets a block
        of its own, into which its first reservation copies the state.
        """
        pairs = zip(self._held(), self._has_rows, strict=True)
        return tuple(lease.ids[:0] if has_row else lease.ids for lease, has_row in pairs)

    def take(self) -> tuple[CachedLease, ...]:
        """Returns the leases and consumes the hit. `KVCache.open` calls this."""
        leases = self._held()
        self._leases = None
        return leases

    def close(self) -> None:
        """Releases the blocks unused and consumes the hit."""
        for lease in self.take():
            lease.close()

    def _held(self) -> tuple[CachedLease, ...]:
        if self._leases is None:
            raise LeaseUsed("the prefix hit was opened or closed")
        return self._leases


@final
class SequenceCache:
    """The cache of one sequence, created by `KVCache.open`. Step thread only.

    Attributes:
        keys: the request's keys; `apply` extends them.
        num_cached_tokens: number of tokens found in the cache when the sequence was opened.
        cached_by_tier: the same number, split by the tier that the blocks came from.
        num_computed: number of leading positions that `apply` has settled.
    """

    __slots__ = (
        "_blocks",
        "_is_cacheable",
        "_ledger",
        "_num_given",
        "_reservations",
        "_space",
        "cached_by_tier",
        "keys",
        "num_cached_tokens",
        "num_computed",
    )

    def __init__(
        self,
        space: BlockSpace,
        ledger: StepLedger,
        keys: BlockKeys,
        cached: tuple[CachedLease, ...],
        *,
        num_cached_tokens: int,
        cached_by_tier: TierTokens,
        is_cacheable: bool,
        use: CacheUse,
    ) -> None:
        self._space = space
        self._blocks = space.open(keys, num_cached_tokens, cached, is_cacheable=is_cacheable)
        self._blocks.attribute_to(use)
        self._ledger = ledger
        self._is_cacheable = is_cacheable
        self._num_given = keys.num_tokens
        self._reservations: list[Reservation] = []
        self.keys = keys
        self.num_cached_tokens = num_cached_tokens
        self.cached_by_tier = cached_by_tier
        self.num_computed = num_cached_tokens

    @property
    def block_ids(self) -> tuple[BlockIds, ...]:
        """For each group, the block table [num_blocks], spare capacity included.

        The table of a window group begins with the first block that the window has not passed, see
        `num_dropped_blocks`. The table of a state group is the sequence's block.
        """
        self._check_open()
        return self._blocks.block_ids

    @property
    def num_dropped_blocks(self) -> tuple[int, ...]:
        """For each group, the number of leading table entries that a window has passed.

        Entry i of a table is always for positions `[i, i + 1) * tokens_per_block`.
        """
        self._check_open()
        return self._blocks.num_dropped

    @property
    def capacity(self) -> int:
        """Number of positions with blocks. A step that ends below needs no `try_schedule`."""
        return self._blocks.capacity

    @property
    def num_landed_blocks(self) -> int:
        """Number of leading blocks of the first group that are computed and indexed."""
        self._check_open()
        blocks = self._blocks
        if not self._is_cacheable or not blocks.is_current:
            return 0
        return min(blocks.num_landed, blocks.num_published // self.keys.tokens_per_block)

    @property
    def is_computing(self) -> bool:
        """Whether the sequence may still compute known tokens that others can share."""
        return self.shared_after(0) is not None

    def shared_after(self, position: int) -> int | None:
        """Returns the first position after `position` at which other requests can resume later.

        Considers the tokens known at the start that are not published yet. None if there is no
        such position.
        """
        blocks = self._blocks
        if blocks.is_closed or not blocks.is_current:
            return None
        found = self._space.shared_after(self.keys, max(position, blocks.num_published))
        return found if found is not None and found <= self._num_given else None

    def num_blocks_short(self, end: int) -> int:
        """Returns the blocks that `try_schedule(end)` would take; with slabs, an upper bound."""
        return self._blocks.num_short(end)

    def num_blocks_to_come(self, end: int) -> int:
        """Returns an upper bound of the further blocks, or slabs, held at any time up to `end`."""
        return self._blocks.num_to_come(end)

    def try_schedule(
        self, end: int, *, reach: int | None = None, spare: int = 0
    ) -> Reservation | None:
        """Reserves room for every position below `end`, for the step being planned.

        This step or an earlier one must write every known token below `end`. For a chunk of a
        prompt, `end` is therefore the chunk's end. Beyond the known tokens, `end` is an upper bound
        (drafts). Blocks full of known tokens below `end` are sealed, and sequences opened in later
        steps may share them. The call may be left out for a step with `end <= capacity`; a later
        call or `apply` then seals the blocks.

        Args:
            end: see above.
            reach: exact number of positions planned including this step. State groups need it for
                copies in growing output. If `end` is within the known tokens, it is `end`. None if
                unknown, because the device may accept fewer drafts.
            spare: number of further positions to reserve room for, so that fewer calls are needed.

        Returns:
            The reservation, or None if there is no room; nothing has changed then.

        Raises:
            StepOrderError: no step is being planned, or the sequence has a reservation in it
                already.
            LeaseUsed: the sequence is closed.
        """
        blocks = self._blocks
        if blocks.is_closed:
            raise LeaseUsed("the sequence is closed")
        step_id = self._ledger.planned
        newest = self._newest_in_flight() if self._reservations else None
        if newest is not None and newest.step_id == step_id:
            raise StepOrderError(f"step {step_id} has a reservation for this sequence already")
        new_block_ids = blocks.try_grow(end + spare)
        if new_block_ids is None:
            return None
        keys, seals, copies = self.keys, None, NO_COPIES
        if isinstance(blocks, GroupedBlocks):
            seals, copies = blocks.plan(step_id, keys, end, reach, is_cacheable=self._is_cacheable)
        elif self._is_cacheable:
            seals = blocks.seal_known(keys, min(end, keys.num_tokens))
        reservation = Reservation(
            blocks, keys, new_block_ids, step_id=step_id, end=end, seals=seals, copies=copies
        )
        self._ledger.record(reservation)
        self._reservations.append(reservation)
        return reservation

    def apply(self, num_computed: int, token_ids: TokenIds | bytes = b"") -> None:
        """Settles positions below `num_computed` and appends newly sampled tokens.

        Call it once the steps that computed the positions have completed. Fewer positions than
        reserved are allowed (rejected drafts): the rest stays spare capacity.

        Args:
            num_computed: at least the number settled before, at most the known tokens and the
                capacity.
            token_ids: ids sampled since the last call; they extend `keys`.

        Raises:
            ValueError: `num_computed` is out of these bounds; nothing has changed then.
            LeaseUsed: the sequence is closed.
        """
        blocks, keys = self._blocks, self.keys
        if blocks.is_closed:
            raise LeaseUsed("the sequence is closed")
        num_known = keys.num_tokens + num_ids(token_ids)
        if not self.num_computed <= num_computed <= min(num_known, blocks.capacity):
            raise ValueError(
                f"num_computed={num_computed} is out of range: {self.num_computed} are settled, "
                f"{num_known} tokens are known, and there is room for {blocks.capacity}"
            )
        if len(token_ids):
            keys.extend(token_ids)
        self.num_computed = num_computed
        blocks.settle(keys, num_computed, is_cacheable=self._is_cacheable)

    def close(self, *, in_flight_until: int | None) -> None:
        """Ends the sequence. Its blocks are released when step `in_flight_until` has completed.

        Cached blocks can be matched until they are evicted. The caller keeps the keys, so that a
        preempted request can be matched and opened again.

        Args:
            in_flight_until: the newest step that has this sequence in its plan; None if all of them
                have completed.

        Raises:
            ValueError: a later step has a reservation of this sequence.
            LeaseUsed: the sequence is closed.
        """
        self._check_open()
        newest, until = self._newest_in_flight(), in_flight_until
        if newest is not None and (until is None or until < newest.step_id):
            raise ValueError(f"step {newest.step_id} is in flight with this sequence")
        self._blocks.is_closed = True
        if until is None:
            self._blocks.release()
        else:
            self._ledger.park(self._blocks, until)

    def _newest_in_flight(self) -> Reservation | None:
        reservations = self._reservations
        while reservations and not reservations[-1].is_in_flight:
            reservations.pop()
        while reservations and not reservations[0].is_in_flight:
            del reservations[0]
        return reservations[-1] if reservations else None

    def _check_open(self) -> None:
        if self._blocks.is_closed:
            raise LeaseUsed("the sequence is closed")
