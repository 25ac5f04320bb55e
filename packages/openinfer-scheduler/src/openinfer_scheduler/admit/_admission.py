"""Which waiting sequences start: prefix hit, leader, adapter, blocks, share of the pool."""

from typing import Literal

from openinfer_kv_cache import CacheUse, PrefixHit
from openinfer_scheduler._guarded_policy import GuardedPolicy
from openinfer_scheduler._step_plan import RowStart
from openinfer_scheduler.admit._capacity_check import Room
from openinfer_scheduler.plan._plan_builder import ChunkSizes, DecodeRows, Draft
from openinfer_scheduler.plan._policy_order import ranked_waiting
from openinfer_scheduler.state._scheduler_state import SchedulerState
from openinfer_scheduler.state._sequence import SequenceState, Stay

_MAX_FOLLOWERS = 16
"""Waiting sequences looked past in one plan because a running one computes their prefix."""

_PATIENCE = 16
"""Plans for which a queue whose first found no room is left alone, while nothing changes."""

Answer = Literal["started", "no room", "too many prompts"]


class Admission:
    """The gate between the queue and the slots.

    Sequences start in the policy's order until one does not fit: nothing overtakes it. Only who
    waits for something else than room is looked past: a load from a tier, the running leader of
    its prefix, or, where `max_adapters` are at work, one of them to end. Behind the last, nobody
    with an adapter starts, so that those at work do end.
    """

    def __init__(
        self,
        state: SchedulerState,
        policy: GuardedPolicy,
        sizes: ChunkSizes,
        room: Room,
    ) -> None:
        self._state = state
        self._room = room
        self._policy = policy
        self._sizes = sizes
        self._decode_rows = DecodeRows(state)
        self._refusal = (0, 0)
        """`num_moves` and available blocks when the first in the queue found no room."""
        self._asks_again_at = 0
        """The step that looks at the queue although nothing has changed since."""

    def admit(self, draft: Draft) -> None:
        """Starts waiting sequences in the plan being made.

        Nobody while a running one is short of blocks or a preempted one is on its way back to the
        queue: nothing overtakes those.
        """
        state = self._state
        if not state.waiting or not state.slots.num_free or not draft.budget:
            return
        if draft.is_full or state.settling or self._is_refused(draft):
            return
        num_followers = 0
        needs_adapter_slot = False
        state.charges.report(state.running, draft.step_id)
        for rank, sequence in enumerate(ranked_waiting(self._policy, state, draft.now)):
            if sequence.is_loading:
                continue
            adapter = sequence.request.adapter
            if adapter is not None and (
                needs_adapter_slot or not state.adapters.has_room(adapter.uid)
            ):
                needs_adapter_slot = True
                continue
            num_hit = state.probe.hit_now(sequence)
            if self._has_leader(sequence, num_hit):
                num_followers += 1
                if num_followers == _MAX_FOLLOWERS:
                    return
            else:
                answer = self._start(draft, sequence, num_hit)
                if answer == "no room" and not rank:
                    self._refusal = state.num_moves, state.cache.num_available_blocks
                    self._asks_again_at = draft.step_id + _PATIENCE
                if answer != "started":
                    return
            if not state.slots.num_free or not draft.budget:
                return

    def _is_refused(self, draft: Draft) -> bool:
        """Whether the first in the queue found no room a few plans ago, and it cannot have now."""
        state = self._state
        num_moves, num_available = self._refusal
        return (
            draft.step_id < self._asks_again_at
            and bool(state.running)
            and state.num_moves == num_moves
            and state.cache.num_available_blocks <= num_available
        )

    def _start(self, draft: Draft, sequence: SequenceState, num_hit: int) -> Answer:
        """Starts a sequence with its first chunk, or says why not."""
        state = self._state
        cache = state.cache
        num_tokens = self._sizes.of(sequence, draft.budget, num_hit)
        end = num_hit + num_tokens
        is_partial = end < sequence.num_known_tokens
        most = state.config.max_partial_prefills
        if is_partial and most is not None and draft.num_partial >= most:
            return "too many prompts"
        # What a hit pins is not available any more, so this is necessary and saves the match.
        if cache.num_blocks_beyond(num_hit, end) > cache.num_available_blocks:
            return "no room"
        keys = state.probe.keys_of(sequence)
        hit = cache.match(keys, max_tokens=num_hit)
        assert hit.num_tokens == num_hit, "the prefix was looked up a moment ago"
        if not self._room.fits(sequence, num_hit, end):
            hit.close()
            if not num_hit or not self._is_alone(draft):
                return "no room"
            # The hit lies in so many slabs that the rest finds none: by itself it fits.
            sequence.is_by_itself = True
            return self._start(draft, sequence, 0)
        self._begin(draft, sequence, hit, num_tokens)
        draft.num_partial += is_partial
        return "started"

    def _begin(
        self, draft: Draft, sequence: SequenceState, hit: PrefixHit, num_tokens: int
    ) -> None:
        """Gives a sequence that fits a slot, its blocks and its first chunk."""
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
        stay = Stay(sequence, row, opened, draft.step_id)
        state.start(sequence, stay, draft.now)
        self._room.promise(sequence)
        uid = stay.adapter_uid
        draft.started.append(stay)
        draft.starts.append(
            RowStart(
                slot=stay.slot,
                request=request,
                token_ids=stay.given,
                num_output_tokens=sequence.num_output_tokens,
                num_cached_tokens=num_hit,
                block_ids=block_ids,
                seed=sequence.seed,
                adapter_slot=None if uid is None else state.adapters.take(uid),
            )
        )
        draft.add_chunk(stay, num_tokens, reservation)

    def _is_alone(self, draft: Draft) -> bool:
        """Whether nobody holds a block that could return."""
        state = self._state
        return draft.is_empty and not (
            state.running or state.settling or state.in_flight or state.cache.num_tier_blocks
        )

    def _has_leader(self, sequence: SequenceState, num_hit: int) -> bool:
        """Whether a running sequence is about to compute what the hit lacks.

        So many requests on one cold prefix cost one prefill: the followers wait for the leader,
        whose blocks they can share from the step after the one that computes them.
        """
        if sequence.max_hit_tokens is not None:
            return False
        return self._state.cache.has_leader(self._state.probe.keys_of(sequence), num_hit)
