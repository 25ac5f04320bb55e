"""Which waiting sequences start in a plan: adapter, leader, prefix hit, room in the pool."""

from typing import Literal

from openinfer_kv_cache import CacheUse, PrefixHit
from openinfer_scheduler._guarded_policy import GuardedPolicy
from openinfer_scheduler._step_plan import RowStart
from openinfer_scheduler.admit._capacity_check import CapacityCheck
from openinfer_scheduler.admit._leaders import LeaderCheck
from openinfer_scheduler.plan._plan_builder import ChunkSizes, DecodeRows, PlanBuilder
from openinfer_scheduler.plan._policy_order import ranked_waiting
from openinfer_scheduler.state._scheduler_state import SchedulerState
from openinfer_scheduler.state._sequence import SequenceState, SlotTenancy

_RETRIED_EVERY = 16
"""Number of plans after which a refused queue is tried again although nothing has changed."""

Outcome = Literal["started", "no room", "too many prompts"]


class Admission:
    """The part of planning that moves sequences from the queue into slots.

    Sequences start in the policy's order until one does not fit: none overtakes it. Three kinds of
    sequences wait for something other than blocks and are passed over: a sequence that a tier
    loads, a sequence whose prefix a running leader computes, and, while `max_adapters` adapters are
    in use, a sequence with another adapter. Once a sequence is passed over for its adapter, no
    sequence with an adapter starts. Otherwise the adapters in use might never become idle.
    """

    def __init__(
        self,
        state: SchedulerState,
        policy: GuardedPolicy,
        sizes: ChunkSizes,
        capacity: CapacityCheck,
    ) -> None:
        self._state = state
        self._policy = policy
        self._sizes = sizes
        self._capacity = capacity
        self._decode_rows = DecodeRows(state)
        self._refusal = (0, 0)
        """`admission_epoch` and available blocks when the first sequence of the queue found no
        room."""
        self._retry_at_step = 0

    def admit(self, builder: PlanBuilder) -> None:
        """Starts waiting sequences in the plan being built.

        Starts none while a running sequence is short of blocks, or while a preempted one still has
        rows in flight: new sequences must not overtake either.
        """
        state = self._state
        if not state.waiting or not state.slots.num_free or not builder.budget:
            return
        if builder.is_short_of_blocks or state.settling or self._is_refused(builder):
            return
        leaders = LeaderCheck(state)
        needs_adapter_slot = False
        state.accounts.charge_round(state.running, builder.step_id)
        for rank, sequence in enumerate(ranked_waiting(self._policy, state, builder.now)):
            if sequence.is_loading:
                continue
            adapter = sequence.request.adapter
            if adapter is not None and (
                needs_adapter_slot or not state.adapters.has_room(adapter.uid)
            ):
                needs_adapter_slot = True
                continue
            if leaders.is_exhausted:
                return
            num_hit = leaders.hit_of(sequence)
            if num_hit is None:
                continue
            outcome = self._start(builder, sequence, num_hit)
            if outcome == "no room" and not rank:
                self._refusal = state.admission_epoch, state.cache.num_available_blocks
                self._retry_at_step = builder.step_id + _RETRIED_EVERY
            if outcome != "started" or not state.slots.num_free or not builder.budget:
                return

    def _is_refused(self, builder: PlanBuilder) -> bool:
        """Returns whether the queue's first sequence found no room, with no change since."""
        state = self._state
        admission_epoch, num_available = self._refusal
        return (
            builder.step_id < self._retry_at_step
            and bool(state.running)
            and state.admission_epoch == admission_epoch
            and state.cache.num_available_blocks <= num_available
        )

    def _start(self, builder: PlanBuilder, sequence: SequenceState, num_hit: int) -> Outcome:
        """Starts a sequence with its first chunk, or returns why it cannot start."""
        state = self._state
        cache = state.cache
        num_tokens = self._sizes.of(sequence, builder.budget, num_hit)
        end = num_hit + num_tokens
        is_partial = end < sequence.num_known_tokens
        most = state.config.max_partial_prefills
        if is_partial and most is not None and builder.num_partial >= most:
            return "too many prompts"
        # This test saves a match that would be in vain. It is not sufficient: blocks that a hit
        # pins are no longer available.
        if cache.num_blocks_beyond(num_hit, end) > cache.num_available_blocks:
            return "no room"
        keys = state.probe.keys_of(sequence)
        hit = cache.match(keys, max_tokens=num_hit)
        assert hit.num_tokens == num_hit, "the prefix was looked up a moment ago"
        if not self._capacity.fits(sequence, num_hit, end):
            hit.close()
            if not num_hit or not self._is_pool_unused(builder):
                return "no room"
            # The hit pins too many slabs to leave room for the other tokens. Without the hit, the
            # sequence fits.
            sequence.is_unshared = True
            return self._start(builder, sequence, 0)
        self._begin(builder, sequence, hit, num_tokens)
        builder.num_partial += is_partial
        return "started"

    def _begin(
        self, builder: PlanBuilder, sequence: SequenceState, hit: PrefixHit, num_tokens: int
    ) -> None:
        """Gives a sequence that fits its slot, its blocks and its first chunk."""
        state, request, keys = self._state, sequence.request, sequence.keys
        assert keys is not None, "its prefix was looked up"
        num_hit, block_ids = hit.num_tokens, hit.block_ids
        use = CacheUse(
            priority=request.priority, session_id=request.session_id, hint=request.cache.hint
        )
        opened = state.cache.open(keys, hit, is_cacheable=sequence.is_shareable, use=use)
        reservation = opened.try_schedule(num_hit + num_tokens)
        assert reservation is not None, "there was room a moment ago"
        row = self._decode_rows.of(state.slots.take(), sequence)
        tenancy = SlotTenancy(sequence, row, opened, builder.step_id)
        state.start(sequence, tenancy, builder.now)
        self._capacity.add_promise(sequence)
        uid = tenancy.adapter_uid
        builder.started.append(tenancy)
        builder.starts.append(
            RowStart(
                slot=tenancy.slot,
                request=request,
                token_ids=tenancy.host_token_ids,
                num_output_tokens=sequence.num_output_tokens,
                num_cached_tokens=num_hit,
                block_ids=block_ids,
                seed=sequence.seed,
                adapter_slot=None if uid is None else state.adapters.take(uid),
            )
        )
        builder.add_chunk(tenancy, num_tokens, reservation)

    def _is_pool_unused(self, builder: PlanBuilder) -> bool:
        """Returns whether no sequence and no tier holds blocks that could be freed."""
        state = self._state
        return builder.is_empty and not (
            state.running or state.settling or state.in_flight or state.cache.num_tier_blocks
        )
