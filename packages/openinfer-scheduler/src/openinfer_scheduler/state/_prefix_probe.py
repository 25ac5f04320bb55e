"""How much of a waiting sequence's prompt is cached, asked often and answered cheaply."""

from typing import TYPE_CHECKING

from openinfer_kv_cache import BlockKeys, KVCache

if TYPE_CHECKING:
    from openinfer_scheduler.state._sequence import SequenceState

BYTES_PER_ID = 4

MAX_AGE = 32
"""Plans for which an estimate stands."""
_MAX_PEEKS = 32
"""Estimates renewed in one plan."""
_MAX_HASHED_TOKENS = 65_536
"""Tokens hashed for estimates in one plan; 100k take about a millisecond."""


class PrefixProbe:
    """Looks prefixes up in the index without pinning them.

    Admission wants the present figure of a few sequences (`hit_now`); a policy wants a figure for
    each waiting one (`estimate`), which may be `MAX_AGE` plans old, and older, or still 0, where
    so many wait that a plan's share of look-ups is spent. The oldest requests ask first, so all
    get their turn.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._num_peeks = 0
        self._num_hashed = 0
        self.step_id = 0

    def begin_plan(self, step_id: int) -> None:
        """A new plan has a new share of look-ups."""
        self.step_id = step_id
        self._num_peeks = self._num_hashed = 0

    def keys_of(self, sequence: "SequenceState") -> BlockKeys:
        """The sequence's block keys, up to its known tokens."""
        keys = sequence.keys
        if keys is None:
            request = sequence.request
            keys = sequence.keys = self._cache.keys(
                sequence.column,
                adapter_uid=request.adapter.uid if request.adapter else b"",
                salt=request.cache.salt,
                boundaries=request.cache.boundaries,
            )
        elif keys.num_tokens < sequence.num_known_tokens:
            keys.extend(bytes(sequence.tokens[BYTES_PER_ID * keys.num_tokens :]))
        return keys

    def hit_now(self, sequence: "SequenceState") -> int:
        """Tokens that a match would hit now."""
        keys = sequence.keys
        if keys is None or BYTES_PER_ID * keys.num_tokens != len(sequence.tokens):
            keys = self.keys_of(sequence)
        max_tokens = sequence.max_hit_tokens
        num_hit = self._cache.peek(keys, max_tokens=max_tokens, near=sequence.hit_estimate)
        sequence.hit_estimate = num_hit
        sequence.hit_stands_until = self.step_id + MAX_AGE
        return num_hit

    def estimate(self, sequence: "SequenceState") -> int:
        """Tokens that a match would have hit not long ago."""
        if sequence.hit_stands_until >= self.step_id or self._num_peeks >= _MAX_PEEKS:
            return sequence.hit_estimate
        if sequence.keys is None:
            if self._num_hashed and self._num_hashed + sequence.num_known_tokens > (
                _MAX_HASHED_TOKENS
            ):
                return sequence.hit_estimate
            self._num_hashed += sequence.num_known_tokens
        self._num_peeks += 1
        return self.hit_now(sequence)
