"""How much of the pool waiting sequences may have, and loads from tiers."""

from openinfer_scheduler.state._scheduler_state import SchedulerState
from openinfer_scheduler.state._sequence import SequenceState

_RECOUNTED_EVERY = 32
"""Steps after which it is counted anew what the running sequences may still claim."""


class Room:
    """Blocks, or slabs where cache groups share them, and who is entitled to them."""

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        cache, config = state.cache, state.config
        self._is_lifetime = config.admission == "lifetime"
        self._watermark = int(config.watermark * cache.num_blocks)
        self._has_copies = any(group.kind == "state" for group in cache.groups)
        self._recounted_at = 0

    @property
    def is_recounted(self) -> bool:
        """Whether plans count promises, every so many steps."""
        return self._is_lifetime and self._has_copies

    def begin_plan(self, step_id: int) -> None:
        """Keeps optional copies of states away from what admission has promised.

        Between two counts the promises can only be fewer than what was counted and started since.
        """
        if not self.is_recounted:
            return
        if not 0 <= step_id - self._recounted_at < _RECOUNTED_EVERY:
            self._recounted_at = step_id
            self._state.cache.num_promised_blocks = self._num_promised()

    def fits(self, sequence: SequenceState, num_hit: int, end: int) -> bool:
        """Whether there is room for a sequence that begins with the positions below `end`."""
        state = self._state
        room = state.cache.num_available_blocks
        if self._is_lifetime:
            end = sequence.max_total - 1
            room -= self._num_promised()
        elif state.running:
            room -= self._watermark
        return state.cache.num_blocks_beyond(num_hit, end) <= room

    def promise(self, sequence: SequenceState) -> None:
        """A sequence has started."""
        if self._is_lifetime and self._has_copies and sequence.stay is not None:
            self._state.cache.num_promised_blocks += sequence.stay.cache.num_blocks_to_come(
                sequence.max_total - 1
            )

    @property
    def num_entitled(self) -> int:
        """What running sequences may still claim, whoever else would like to have it.

        All of their lifetime where admission looked at that; else the rest of their prompts, their
        next tokens and the watermark.
        """
        if self._is_lifetime:
            return self._num_promised()
        stays = [s.stay for s in self._state.running if s.stay is not None]
        return self._watermark + sum(
            stay.cache.num_blocks_short(max(stay.num_given, stay.num_planned + stay.stride))
            for stay in stays
        )

    def _num_promised(self) -> int:
        """What the running sequences may still take before they end."""
        return sum(
            s.stay.cache.num_blocks_to_come(s.max_total - 1)
            for s in self._state.running
            if s.stay is not None
        )
