"""The number of blocks that a sequence takes ahead of its settled tokens."""

from collections.abc import Sequence

from openinfer_kv_cache import CacheGroup
from openinfer_scheduler._config import SchedulerConfig
from openinfer_scheduler.state._sequence import SEAL_STRIDE

LOOKAHEAD = 15
"""Blocks that a decoding sequence takes beyond the one it needs, while the pool has plenty."""


def num_lookahead_tokens(groups: Sequence[CacheGroup]) -> int:
    """Returns the number of positions that `LOOKAHEAD` blocks hold."""
    return LOOKAHEAD * min(group.tokens_per_block for group in groups)


def max_chunk_tokens(config: SchedulerConfig) -> int:
    """Returns the upper bound on tokens of one prefill chunk."""
    chunk = config.max_num_batched_tokens
    return chunk if config.max_chunk_tokens is None else min(chunk, config.max_chunk_tokens)


def max_unsettled_tokens(config: SchedulerConfig, groups: Sequence[CacheGroup]) -> int:
    """Returns the upper bound on positions of a sequence that have blocks but are not settled.

    Pass it to `KVCache(max_unsettled_tokens=)`, which derives from it how many blocks of a window
    group one sequence may hold.
    """
    chunk = max_chunk_tokens(config)
    output = SEAL_STRIDE * min(group.tokens_per_block for group in groups)
    drafts = config.depth * (1 + config.num_draft_tokens)
    return config.depth * chunk + output + drafts + num_lookahead_tokens(groups)
