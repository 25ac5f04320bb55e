"""Whether the pool has room for another sequence, and what running sequences may still claim."""

from openinfer_scheduler.state._scheduler_state import SchedulerState
from openinfer_scheduler.state._sequence import SequenceState

_RECOUNTED_EVERY = 32
"""Number of steps after which the promises to running sequences are counted again."""


class CapacityCheck:
    """Compares the blocks that a sequence needs with those that the pool can give.

    Counts in blocks, or in slabs if cache groups share slabs. A *promise* is the number of blocks
    that a running sequence may still claim.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        cache, config = state.cache, state.config
        self._is_lifetime = config.admission == "lifetime"
        self._watermark = int(config.watermark * cache.num_blocks)
        self._has_copies = any(group.kind == "state" for group in cache.groups)
        self._recounted_at = 0

    @property
    def counts_promises(self) -> bool:
        """Whether `begin_plan` counts promises every `_RECOUNTED_EVERY` steps."""
        return self._is_lifetime and self._has_copies

    def begin_plan(self, step_id: int) -> None:
        """Tells the cache which promised blocks not to use for optional state copies.

        Between two counts the promises can only shrink, except for sequences that started since;
        those are added by `add_promise`.
        """
        if not self.counts_promises:
            return
        if not 0 <= step_id - self._recounted_at < _RECOUNTED_EVERY:
            self._recounted_at = step_id
            self._state.cache.num_promised_blocks = self._num_promised()

    def fits(self, sequence: SequenceState, num_hit: int, end: int) -> bool:
        """Returns whether the pool has room for a sequence that starts.

        Args:
            sequence: the waiting sequence.
            num_hit: its leading positions that are cached.
            end: end of its first chunk.
        """
        state = self._state
        room = state.cache.num_available_blocks
        if self._is_lifetime:
            end = sequence.max_total - 1
            room -= self._num_promised()
        elif state.running:
            room -= self._watermark
        return state.cache.num_blocks_beyond(num_hit, end) <= room

    def add_promise(self, sequence: SequenceState) -> None:
        """Adds the blocks that a sequence that has just started may need until its end."""
        if self.counts_promises and sequence.tenancy is not None:
            self._state.cache.num_promised_blocks += sequence.tenancy.cache.num_blocks_to_come(
                sequence.max_total - 1
            )

    @property
    def num_entitled(self) -> int:
        """Blocks that are kept for running sequences.

        With lifetime admission, all blocks until their ends. With optimistic admission, blocks for
        the rest of their prompts and their next tokens, plus the watermark.
        """
        if self._is_lifetime:
            return self._num_promised()
        tenancies = [s.tenancy for s in self._state.running if s.tenancy is not None]
        return self._watermark + sum(
            tenancy.cache.num_blocks_short(
                max(tenancy.num_host_tokens, tenancy.num_planned + tenancy.stride)
            )
            for tenancy in tenancies
        )

    def _num_promised(self) -> int:
        """Returns how many blocks the running sequences may still take before they end."""
        return sum(
            s.tenancy.cache.num_blocks_to_come(s.max_total - 1)
            for s in self._state.running
            if s.tenancy is not None
        )
