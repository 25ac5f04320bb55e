"""The scheduler's load as clients see it."""

from openinfer_contract import CacheGroupLoad, Load
from openinfer_kv_cache import GroupStats
from openinfer_scheduler.state._scheduler_state import SchedulerState


def load_of(state: SchedulerState) -> Load:
    """Returns the requests, blocks and slots in use now, and the counters since the start."""
    stats = state.cache.stats()
    counters = state.counters
    return Load(
        step_id=state.next_step - 1,
        num_running=len(state.running) + len(state.settling),
        num_waiting=len(state.waiting),
        num_waiting_tokens=state.waiting.num_tokens,
        num_total_blocks=stats.num_blocks,
        num_free_blocks=stats.num_free,
        num_evictable_blocks=stats.num_evictable,
        num_pinned_blocks=stats.num_pinned,
        num_open_leases=stats.num_open_leases,
        num_slots=state.slots.num_used,
        num_prompt_tokens=counters.num_prompt_tokens,
        num_cached_tokens=counters.num_cached_tokens,
        num_output_tokens=counters.num_output_tokens,
        num_finished=counters.num_finished,
        num_preemptions=counters.num_preemptions,
        num_rejected=counters.num_rejected,
        num_failed=counters.num_failed,
        cache_groups=tuple(map(_group_load, stats.groups)),
    )


def _group_load(stats: GroupStats) -> CacheGroupLoad:
    return CacheGroupLoad(
        name=stats.name,
        tier=stats.tier,
        num_blocks=stats.num_blocks,
        num_cached_blocks=stats.num_cached,
        num_evictable_blocks=stats.num_evictable,
        num_queries=stats.num_queries,
        num_queried_tokens=stats.num_queried_tokens,
        num_hit_tokens=stats.num_hit_tokens,
        num_evictions=stats.num_evictions,
        residency_s=stats.residency_s,
        num_reused_blocks=stats.num_reused,
        reuse_gap_s=stats.reuse_gap_s,
    )
