"""Whether a waiting sequence may start: its prefix hit, its blocks, its share of the pool."""

from openinfer_kv_cache import BlockIds, PrefixHit, Reservation, SequenceCache
from openinfer_scheduler._sequence import BYTES_PER_ID, SequenceState
from openinfer_scheduler._state import SchedulerState


class Admission:
    """The gate between the queue and the slots."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        num_blocks = state.cache.stats().num_blocks
        self._watermark = int(state.config.watermark * num_blocks)

    def try_match(self, sequence: SequenceState) -> PrefixHit | None:
        """The cached prefix; None while a running prefill computes the block that comes next.

        So many requests on one cold prefix cost one prefill: the followers wait for the leader,
        whose blocks they can share from the step after the one that computes them.
        """
        cache, request = self._state.cache, sequence.request
        keys = sequence.keys
        if keys is None:
            keys = sequence.keys = cache.keys(
                bytes(sequence.tokens),
                adapter_uid=request.adapter.uid if request.adapter else b"",
                salt=request.cache.salt,
            )
        elif keys.num_tokens < sequence.num_known_tokens:
            keys.extend(bytes(sequence.tokens[BYTES_PER_ID * keys.num_tokens :]))
        max_tokens = None if request.cache.read else 0
        if sequence.prompt_logprobs_from is not None and max_tokens is None:
            max_tokens = sequence.prompt_logprobs_from - 1
        hit = cache.match(keys, max_tokens=max_tokens)
        if cache.has_prefix_cache and max_tokens is None and self._has_leader(sequence, hit):
            hit.close()
            return None
        return hit

    def try_open(
        self, sequence: SequenceState, hit: PrefixHit, num_tokens: int
    ) -> tuple[SequenceCache, Reservation, tuple[BlockIds, ...]] | None:
        """Opens the sequence for a first chunk of `num_tokens`; None where there is no room."""
        state = self._state
        assert sequence.keys is not None
        end = hit.num_tokens + num_tokens
        room = state.cache.num_available_blocks
        if state.config.admission == "lifetime":
            needed = self._num_blocks_beyond(hit, sequence.max_total - 1)
            room -= self._num_promised_blocks()
        else:
            needed = self._num_blocks_beyond(hit, end)
            room -= self._watermark if state.running else 0
        if needed > room:
            hit.close()
            return None
        cached_block_ids = hit.block_ids
        cache = state.cache.open(sequence.keys, hit, is_cacheable=sequence.is_shareable)
        reservation = cache.try_schedule(end)
        assert reservation is not None, "there was room a moment ago"
        return cache, reservation, cached_block_ids

    def _num_blocks_beyond(self, hit: PrefixHit, end: int) -> int:
        """Blocks that the positions below `end` need besides those of the hit."""
        cache = self._state.cache
        return max(0, cache.num_blocks_for(end) - cache.num_blocks_for(hit.num_tokens))

    def _num_promised_blocks(self) -> int:
        """Blocks that the running sequences may still take before they end."""
        return sum(
            s.stay.cache.num_blocks_short(s.max_total - 1)
            for s in self._state.running
            if s.stay is not None
        )

    def _has_leader(self, sequence: SequenceState, hit: PrefixHit) -> bool:
        """Whether a running prefill is about to compute the first block that was not hit."""
        keys = sequence.keys
        assert keys is not None
        start = hit.num_tokens
        end = start + keys.tokens_per_block
        if end >= sequence.num_known_tokens:
            return False
        block = start // keys.tokens_per_block
        wanted = keys.slice(block, block + 1)
        step_id = self._state.next_step
        for other in self._state.running:
            stay = other.stay
            if (
                stay is not None
                and (stay.num_planned < end or stay.chunk_step == step_id)
                and stay.chunk_start < end <= stay.num_given
                and other.is_shareable
                and stay.cache.keys.slice(block, block + 1) == wanted
            ):
                return True
        return False
