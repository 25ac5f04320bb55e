"""What is made of an executor's cache groups."""

from msgspec.structs import replace

from openinfer_engine import EngineOptions, assemble
from openinfer_engine._assembly import _scheduler_config
from openinfer_kv_cache import CacheGroup, Plane, plan_slabs
from openinfer_testing import ZeroCostExecutor

GROUPS = (
    CacheGroup(name="full", planes=(Plane(name="kv", bytes_per_token=64),)),
    CacheGroup(name="state", kind="state", planes=(Plane(name="s", bytes_per_token=4096),)),
)


class TwoGroups(ZeroCostExecutor):
    """Says that it keeps states, too."""

    @property
    def info(self):
        return replace(super().info, cache_groups=GROUPS, num_blocks=8)


def test_several_groups_share_slabs():
    loop = assemble(TwoGroups(), EngineOptions())
    assert plan_slabs(GROUPS).blocks_per_slab == (4, 1)
    assert [group.num_blocks for group in loop.info.cache_groups] == [32, 8]
    assert loop.load().num_total_blocks == 32
    loop.close()


def test_every_switch_of_scheduling_reaches_the_scheduler():
    switches = {
        "max_queued_requests": 3,
        "max_queued_tokens": 5000,
        "admission": "lifetime",
        "long_prefill_token_threshold": 7,
        "max_num_partial_prefills": 2,
        "target_itl_ms": 20.0,
        "seed": 5,
    }
    config = _scheduler_config(ZeroCostExecutor().info, EngineOptions(**switches))
    assert [
        config.max_queued_requests,
        config.max_queued_tokens,
        config.admission,
        config.max_chunk_tokens,
        config.max_partial_prefills,
        1000 * config.target_itl_s,
        config.seed,
    ] == list(switches.values())
