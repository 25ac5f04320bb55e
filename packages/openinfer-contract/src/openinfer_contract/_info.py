"""What an engine says of itself: once as `EngineInfo`, again and again as `Load`."""

from msgspec import Struct

CONTRACT_VERSION = 1
"""Raised with every change that old and new sides could not bridge."""


class CacheGroupInfo(Struct, frozen=True, array_like=True, kw_only=True):
    """One group of the KV cache, as routers and metrics see it."""

    name: str
    kind: str
    tokens_per_block: int
    num_blocks: int
    bytes_per_block: int


class Limits(Struct, frozen=True, array_like=True, kw_only=True):
    """Bounds a request must keep, and bounds of the intake."""

    max_model_len: int
    """Prompt and output tokens of one request at most."""
    max_num_seqs: int
    """Rows of one step."""
    max_num_batched_tokens: int
    """Tokens forwarded in one step."""
    max_queued_requests: int
    max_queued_tokens: int
    max_logprobs: int
    """Largest `num_top`."""
    max_stop_token_ids: int = 64
    max_bad_words: int = 256
    max_bad_word_ids: int = 32
    """Ids of one bad word at most."""


class EngineInfo(Struct, frozen=True, array_like=True, kw_only=True):
    """The identity, limits and abilities of one engine. Constant while it lives."""

    engine: str
    """Name and version of the implementation."""
    model_line: str
    model_fingerprint: str
    """Digest over the checkpoint's config and tensor headers: part of every tier's namespace."""
    dtype: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    limits: Limits
    cache_groups: tuple[CacheGroupInfo, ...]
    hash_recipe: str
    """How block keys are made, `xxh3-128-chain/v1`."""
    honoured: frozenset[str]
    """Optional request features this engine honours, by field: see `FEATURES`."""
    commands: frozenset[str]
    roles: tuple[str, ...] = ("prefill", "decode")
    weights_version: int = 0
    tp_size: int = 1
    device: str = "cpu"
    pid: int = 0
    has_device: bool = False
    """Whether steps run on something else than the host's cores, which are idle meanwhile."""


class CacheGroupLoad(Struct, frozen=True, array_like=True, kw_only=True):
    """One cache group in one tier. Counters only grow, so that rates are differences."""

    name: str
    tier: str
    num_blocks: int
    """Blocks it has at the moment; groups that share memory take them from each other."""
    num_cached_blocks: int
    """Of these, the ones that a prefix can hit."""
    num_evictable_blocks: int
    """Of the cached ones, those that nobody holds."""
    num_queries: int
    """Counters from here on: sequences that looked for a prefix."""
    num_queried_tokens: int
    num_hit_tokens: int
    num_evictions: int
    residency_s: float
    """Seconds between storing and giving up, summed over `num_evictions`."""
    num_reused_blocks: int
    """Cached blocks that a sequence found held by nobody."""
    reuse_gap_s: float
    """Seconds since somebody had last used them, summed over `num_reused_blocks`."""


class Load(Struct, frozen=True, array_like=True, kw_only=True):
    """A snapshot of what an engine holds. Blocks are summed over the cache groups."""

    step_id: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_waiting_tokens: int = 0
    num_total_blocks: int = 0
    num_free_blocks: int = 0
    num_evictable_blocks: int = 0
    num_pinned_blocks: int = 0
    num_open_leases: int = 0
    num_slots: int = 0
    """Executor rows in use."""
    num_prompt_tokens: int = 0
    """Counters below only grow: prompt tokens of scheduled requests."""
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_finished: int = 0
    num_preemptions: int = 0
    num_rejected: int = 0
    num_failed: int = 0
    is_paused: bool = False
    is_draining: bool = False
    cache_groups: tuple[CacheGroupLoad, ...] = ()
    """By group and tier."""
    num_kv_event_batches: int = 0
    """Batches of KV events published."""
    num_dropped_kv_event_batches: int = 0
    """Of those, the ones that at least one subscriber was too slow for."""
    is_tracing: bool = False
    """Whether a trace is being written: clients add what they did, with `AddSpans`."""
    num_compilations: int = 0
    """Kernels that were compiled since the engine was ready: requests may have waited for them."""

    @property
    def is_idle(self) -> bool:
        """No request, no row, no pin, no lease, and every block free or evictable."""
        return (
            self.num_running == self.num_waiting == self.num_slots == 0
            and self.num_pinned_blocks == self.num_open_leases == 0
            and self.num_free_blocks + self.num_evictable_blocks == self.num_total_blocks
        )
