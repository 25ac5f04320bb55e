"""An engine's reports about itself: `EngineInfo` once, and `Load` several times a second."""

from msgspec import Struct

CONTRACT_VERSION = 1
"""Version of the messages, incremented by every change that an older peer could not understand."""


class CacheGroupInfo(Struct, frozen=True, array_like=True, kw_only=True):
    """One group of the KV cache, as routers and metrics see it."""

    name: str
    kind: str
    tokens_per_block: int
    num_blocks: int
    bytes_per_block: int


class Limits(Struct, frozen=True, array_like=True, kw_only=True):
    """Upper bounds that requests must keep, and upper bounds of the waiting queue."""

    max_model_len: int
    """Prompt plus output tokens of one request."""
    max_num_seqs: int
    """Requests that run at the same time, which is the number of rows of one step."""
    max_num_batched_tokens: int
    """Tokens forwarded in one step."""
    max_queued_requests: int
    """Requests that wait to be admitted."""
    max_queued_tokens: int
    """Prompt tokens of all waiting requests together."""
    max_logprobs: int
    """`num_top` of `LogprobOptions` and `PromptLogprobOptions`."""
    max_stop_token_ids: int = 64
    """Stop ids of one request, besides the model's own."""
    max_bad_words: int = 256
    max_bad_word_ids: int = 32
    """Ids of one bad word."""


class EngineInfo(Struct, frozen=True, array_like=True, kw_only=True):
    """An engine's identity, limits and abilities. Constant while the engine lives."""

    engine: str
    """Name and version of the implementation."""
    model_line: str
    """Name of the model line that serves the checkpoint."""
    model_fingerprint: str
    """Digest of the checkpoint's config and tensor headers. Every cache tier's namespace contains
    it."""
    dtype: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    limits: Limits
    cache_groups: tuple[CacheGroupInfo, ...]
    hash_recipe: str
    """Name of the method that computes block keys, such as `xxh3-128-chain/v1`."""
    honoured: frozenset[str]
    """Names of the optional request features in `FEATURES` that this engine supports."""
    commands: frozenset[str]
    """Names of the commands that this engine supports, as `command_name` returns them."""
    roles: tuple[str, ...] = ("prefill", "decode")
    weights_version: int = 0
    tp_size: int = 1
    device: str = "cpu"
    pid: int = 0
    has_device: bool = False
    """Whether steps run on a device, so that the host's cores are idle meanwhile."""


class CacheGroupLoad(Struct, frozen=True, array_like=True, kw_only=True):
    """The load of one cache group in one tier. Counters only grow, so differences give rates."""

    name: str
    tier: str
    num_blocks: int
    """Blocks that the group has at the moment. Groups of one arena take blocks from each other."""
    num_cached_blocks: int
    """Blocks that a prefix can hit; a part of `num_blocks`."""
    num_evictable_blocks: int
    """Cached blocks without a lease; a part of `num_cached_blocks`."""
    num_queries: int
    """Prefix lookups, one for each admitted sequence. The fields from here on are counters."""
    num_queried_tokens: int
    num_hit_tokens: int
    num_evictions: int
    residency_s: float
    """Seconds between storing and evicting a block, summed over `num_evictions`."""
    num_reused_blocks: int
    """Prefix hits on blocks that had no lease at the time."""
    reuse_gap_s: float
    """Seconds for which such blocks were unused before the hit, summed over `num_reused_blocks`."""


class Load(Struct, frozen=True, array_like=True, kw_only=True):
    """The load of an engine at one moment. Blocks are summed over the cache groups."""

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
    """Slots of the executor's tables in use."""
    num_prompt_tokens: int = 0
    """Prompt tokens of admitted requests. The numbers from here to `num_failed` are counters."""
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    num_finished: int = 0
    num_preemptions: int = 0
    num_rejected: int = 0
    num_failed: int = 0
    is_paused: bool = False
    is_draining: bool = False
    cache_groups: tuple[CacheGroupLoad, ...] = ()
    """One entry for each group and tier."""
    num_kv_event_batches: int = 0
    """Published batches of KV events."""
    num_dropped_kv_event_batches: int = 0
    """Published batches that at least one slow subscriber has lost."""
    is_tracing: bool = False
    """Whether a trace is being written, so that clients send `AddSpans`."""
    num_compilations: int = 0
    """Kernels compiled since the engine was ready. Requests may have waited for them."""

    @property
    def is_idle(self) -> bool:
        """Whether no request, slot, pin or lease exists and every block is free or evictable."""
        return (
            self.num_running == self.num_waiting == self.num_slots == 0
            and self.num_pinned_blocks == self.num_open_leases == 0
            and self.num_free_blocks + self.num_evictable_blocks == self.num_total_blocks
        )
