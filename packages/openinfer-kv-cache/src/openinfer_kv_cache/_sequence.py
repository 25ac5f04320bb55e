"""One request's part of the cache: prefix hit, reservations, settled positions.

Positions are absolute, so a step that needs neither a block nor a seal needs no call, and one
`apply` may settle several steps.
"""

from typing import final

from openinfer_kv_cache._blocks import SequenceBlocks
from openinfer_kv_cache._eviction import BlockIds
from openinfer_kv_cache._keys import BlockKeys, TokenIds
from openinfer_kv_cache._lease import CachedLease
from openinfer_kv_cache._pool import BlockPool
from openinfer_kv_cache._steps import Reservation, StepLedger
from openinfer_kv_cache.errors import LeaseUsed, StepOrderError


@final
class PrefixHit:
    """Leading blocks of a request that are cached already, pinned until opened or closed.

    Attributes:
        epoch: resets and reverted steps before the match; after another one the hit is void.
    """

    __slots__ = ("_lease", "_tokens_per_block", "epoch")

    def __init__(self, lease: CachedLease, tokens_per_block: int, epoch: tuple[int, int]) -> None:
        self._lease: CachedLease | None = lease
        self._tokens_per_block = tokens_per_block
        self.epoch = epoch

    @property
    def num_tokens(self) -> int:
        """Positions that need no forward; always less than the request's tokens."""
        return len(self._held()) * self._tokens_per_block

    @property
    def block_ids(self) -> tuple[BlockIds, ...]:
        """Per group, the pinned blocks in order."""
        return (self._held().ids,)

    def take(self) -> CachedLease:
        """Hand the lease on; consumes the hit. `KVCache.open` does this."""
        lease = self._held()
        self._lease = None
        return lease

    def close(self) -> None:
        """Let the blocks go unused; consumes the hit."""
        self.take().close()

    def _held(self) -> CachedLease:
        if self._lease is None:
            raise LeaseUsed("the prefix hit was opened or closed")
        return self._lease


@final
class SequenceCache:
    """The cache of one sequence, made by `KVCache.open`. Belongs to the step thread.

    Attributes:
        keys: the request's keys; `apply` extends them.
        num_cached_tokens: positions found in the cache when the sequence was opened.
        num_computed: leading positions that `apply` has settled.
    """

    __slots__ = (
        "_blocks",
        "_is_cacheable",
        "_ledger",
        "_pool",
        "_reservations",
        "_tokens_per_block",
        "keys",
        "num_cached_tokens",
        "num_computed",
    )

    def __init__(
        self,
        pool: BlockPool,
        ledger: StepLedger,
        keys: BlockKeys,
        cached: CachedLease,
        *,
        is_cacheable: bool,
    ) -> None:
        self._pool = pool
        self._ledger = ledger
        self._tokens_per_block = keys.tokens_per_block
        self._blocks = SequenceBlocks(pool, cached)
        self._is_cacheable = is_cacheable
        self._reservations: list[Reservation] = []
        ledger.record_opened(self._blocks)
        self.keys = keys
        self.num_cached_tokens = len(cached) * self._tokens_per_block
        self.num_computed = self.num_cached_tokens

    @property
    def block_ids(self) -> tuple[BlockIds, ...]:
        """Per group, the whole block table [num_blocks], spare capacity included."""
        self._check_open()
        return (self._blocks.ids,)

    @property
    def capacity(self) -> int:
        """Positions that have a block."""
        return self._blocks.num_blocks * self._tokens_per_block

    def num_blocks_short(self, end: int) -> int:
        """Blocks that `try_schedule(end)` would take."""
        return max(0, -(-end // self._tokens_per_block) - self._blocks.num_blocks)

    def try_schedule(self, end: int) -> Reservation | None:
        """Reserve for the step being planned: room for every position below `end`.

        Every known token below `end` must be written by this step or one before it, so a chunk of
        a prompt passes its own end; beyond the known tokens `end` is an upper bound (drafts).
        Blocks full of known tokens below `end` are sealed: sequences opened in later steps may
        share them. A step with `end <= capacity` may leave the call out; then they are sealed by
        a later call or by `apply`.

        Returns:
            None when there is no room: nothing has changed then.

        Raises:
            StepOrderError: no step is being planned, or it has a reservation here already.
            LeaseUsed: the sequence is closed.
        """
        self._check_open()
        step_id = self._ledger.planned
        newest = self._newest_in_flight()
        if newest is not None and newest.step_id == step_id:
            raise StepOrderError(f"step {step_id} has a reservation for this sequence already")
        blocks = self._blocks
        new_ids = blocks.try_grow(self.num_blocks_short(end))
        if new_ids is None:
            return None
        num_sealed = blocks.num_sealed
        num_known = min(end, self.keys.num_tokens) // self._tokens_per_block
        if num_known > num_sealed and self._may_seal():
            blocks.seal(self.keys.slice(num_sealed, num_known))
        reservation = Reservation(
            blocks,
            self.keys,
            step_id=step_id,
            end=end,
            new_ids=new_ids,
            num_sealed_before=num_sealed,
        )
        self._ledger.record(reservation)
        self._reservations.append(reservation)
        return reservation

    def apply(self, num_computed: int, token_ids: TokenIds | bytes = b"") -> None:
        """Settle: positions below `num_computed` have been computed, `token_ids` came after.

        Call it once the steps that computed them have completed. Fewer positions than reserved
        are fine (rejected drafts): the rest stays spare capacity.

        Args:
            num_computed: at least what was settled before, at most the known tokens and capacity.
            token_ids: ids sampled since the last call; they extend `keys`.

        Raises:
            ValueError: `num_computed` is out of these bounds.
            LeaseUsed: the sequence is closed.
        """
        self._check_open()
        if len(token_ids):
            self.keys.extend(token_ids)
        if not self.num_computed <= num_computed <= min(self.keys.num_tokens, self.capacity):
            raise ValueError(
                f"{num_computed} positions computed after {self.num_computed}, with "
                f"{self.keys.num_tokens} tokens known and room for {self.capacity}"
            )
        self.num_computed = num_computed
        blocks = self._blocks
        blocks.num_landed = num_computed // self._tokens_per_block
        if blocks.num_landed > blocks.num_sealed and self._may_seal():
            blocks.publish()
            num_sealed = blocks.num_sealed
            blocks.seal(self.keys.slice(num_sealed, blocks.num_landed))
            blocks.publish()
            blocks.announce(self.keys, num_sealed, blocks.num_landed)

    def revert(self, reservation: Reservation) -> None:
        """Undo this step's reservation: the row is not in the plan after all.

        Its new blocks are free at once, so the step must not have been launched. A whole step is
        reverted by `KVCache.revert_step`.

        Raises:
            LeaseUsed: the reservation is completed or reverted.
            StepOrderError: it is not the newest one, or not of the step being planned.
        """
        if not reservation.is_in_flight:
            raise LeaseUsed("the reservation was completed or reverted")
        if reservation is not self._newest_in_flight():
            raise StepOrderError("the reservation is another sequence's, or not the newest")
        self._ledger.undo(reservation)

    def close(self, *, in_flight_until: int | None) -> None:
        """End the sequence; its blocks return when `in_flight_until` has completed.

        Cached blocks can be matched until they are evicted. The keys stay with the caller, so a
        preempted request is matched and opened again.

        Args:
            in_flight_until: the last step begun that has this sequence in its plan, or None when
                all of them have completed or been reverted.

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

    def _may_seal(self) -> bool:
        return self._is_cacheable and self._blocks.namespace == self._pool.namespace

    def _check_open(self) -> None:
        if self._blocks.is_closed:
            raise LeaseUsed("the sequence is closed")
