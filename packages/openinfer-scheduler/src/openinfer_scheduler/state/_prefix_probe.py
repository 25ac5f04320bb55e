"""How much of a waiting sequence's prompt is cached, at a bounded cost per plan."""

from openinfer_kv_cache import BlockKeys, KVCache
from openinfer_scheduler.state._sequence import BYTES_PER_ID, SequenceState

MAX_AGE = 32
"""Number of plans for which an estimate stays valid."""
_MAX_PEEKS = 32
"""Upper bound on estimates renewed in one plan."""
_MAX_HASHED_TOKENS = 65_536
"""Upper bound on tokens hashed for estimates in one plan; hashing 100,000 takes about 1 ms."""


class PrefixProbe:
    """Looks prefixes up in the cache's index without pinning blocks.

    Admission needs the exact figure for a few sequences (`hit_now`). A policy needs a figure for
    every waiting sequence (`estimate`): it may be `MAX_AGE` plans old. If more sequences wait than
    a plan's budget of look-ups allows, it may be older, or still 0. The oldest requests are looked
    up first, so every request gets its turn.
    """

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache
        self._num_peeks = 0
        self._num_hashed = 0
        self.step_id = 0

    def begin_plan(self, step_id: int) -> None:
        """Resets the budget of look-ups for a new plan."""
        self.step_id = step_id
        self._num_peeks = self._num_hashed = 0

    def keys_of(self, sequence: SequenceState) -> BlockKeys:
        """Returns the sequence's block keys, extended to its known tokens."""
        keys = sequence.keys
        if keys is None:
            request = sequence.request
            keys = sequence.keys = self._cache.keys(
                sequence.token_column,
                adapter_uid=request.adapter.uid if request.adapter else b"",
                salt=request.cache.salt,
                boundaries=request.cache.boundaries,
            )
        elif keys.num_tokens < sequence.num_known_tokens:
            keys.extend(bytes(sequence.tokens[BYTES_PER_ID * keys.num_tokens :]))
        return keys

    def hit_now(self, sequence: SequenceState) -> int:
        """Returns how many tokens a match would hit now."""
        keys = sequence.keys
        if keys is None or BYTES_PER_ID * keys.num_tokens != len(sequence.tokens):
            keys = self.keys_of(sequence)
        max_tokens = sequence.max_hit_tokens
        num_hit = self._cache.peek(keys, max_tokens=max_tokens, near=sequence.hit_estimate)
        sequence.hit_estimate = num_hit
        sequence.hit_valid_until_step = self.step_id + MAX_AGE
        return num_hit

    def estimate(self, sequence: SequenceState) -> int:
        """Returns how many tokens a match would have hit when it was last looked up."""
        if sequence.hit_valid_until_step >= self.step_id or self._num_peeks >= _MAX_PEEKS:
            return sequence.hit_estimate
        if sequence.keys is None:
            if self._num_hashed and self._num_hashed + sequence.num_known_tokens > (
                _MAX_HASHED_TOKENS
            ):
                return sequence.hit_estimate
            self._num_hashed += sequence.num_known_tokens
        self._num_peeks += 1
        return self.hit_now(sequence)
