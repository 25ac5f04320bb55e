"""Waiting sequences that follow a leader: a running sequence that computes their prefix."""

from openinfer_scheduler.state._scheduler_state import SchedulerState
from openinfer_scheduler.state._sequence import SequenceState

_MAX_LOOKUPS = 16
"""Upper bound on followers that are found by a look-up in one plan."""

_MAX_FOLLOWERS = 1024
"""Upper bound on followers that are passed over in one plan."""

_MAX_HASHED_TOKENS = 65_536
"""Tokens after which no further sequence is hashed in one plan to recognise followers of a leader
that is known already; hashing 100,000 takes about 1 ms."""


class LeaderCheck:
    """Recognises followers in one plan, so that admission passes over them.

    Requests on one cold prefix cost one prefill: the first is the leader, and the others wait until
    it has computed the prefix. They share its blocks from the step after that.

    The first follower of a leader is found by a look-up in the cache. Others have the same key for
    the block that the leader is about to compute and need no look-up. So admission reaches a
    sequence with another prefix even if hundreds of followers wait before it.
    """

    def __init__(self, state: SchedulerState) -> None:
        self._state = state
        self._keys: dict[int, set[bytes]] = {}
        """Keys of blocks that leaders are about to compute, by block index."""
        self._num_lookups = 0
        self._num_followers = 0
        self._num_hashed = 0
        self._is_hash_budget_spent = False

    @property
    def is_exhausted(self) -> bool:
        """Whether this plan's budget is spent."""
        return (
            self._is_hash_budget_spent
            or self._num_lookups >= _MAX_LOOKUPS
            or self._num_followers >= _MAX_FOLLOWERS
        )

    def hit_of(self, sequence: SequenceState) -> int | None:
        """Returns the leading tokens that a match would hit.

        Returns:
            None for a follower, and for a sequence that was not hashed because this plan's budget
            is spent.
        """
        cache, probe = self._state.cache, self._state.probe
        can_follow = sequence.max_hit_tokens is None
        if can_follow and self._keys:
            self._is_hash_budget_spent = not self._try_hash(sequence)
            if self._is_hash_budget_spent:
                return None
            if self._follows_known_leader(sequence):
                self._num_followers += 1
                return None
        num_hit = probe.hit_now(sequence)
        leader_block = cache.leader_block(probe.keys_of(sequence), num_hit) if can_follow else None
        if leader_block is None:
            return num_hit
        block, key = leader_block
        self._keys.setdefault(block, set()).add(key)
        self._num_lookups += 1
        self._num_followers += 1
        return None

    def _try_hash(self, sequence: SequenceState) -> bool:
        """Makes the keys of a sequence; returns False if it has none and the budget is spent."""
        if sequence.keys is None:
            if self._num_hashed >= _MAX_HASHED_TOKENS:
                return False
            self._num_hashed += sequence.num_known_tokens
            self._state.probe.keys_of(sequence)
        return True

    def _follows_known_leader(self, sequence: SequenceState) -> bool:
        """Returns whether the sequence shares a block that a leader is about to compute."""
        keys = self._state.probe.keys_of(sequence)
        return any(
            keys.num_tokens > (block + 1) * keys.tokens_per_block and keys.at(block) in known
            for block, known in self._keys.items()
        )
