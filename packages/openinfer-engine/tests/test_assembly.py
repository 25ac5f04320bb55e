"""Building an engine over the cache groups of an executor."""

import dataclasses

import pytest
from msgspec.structs import replace

from openinfer_engine import EngineOptions, UnsupportedPlans, assemble
from openinfer_engine._assembly import _scheduler_config, check_abilities
from openinfer_kv_cache import CacheGroup, Plane, plan_slabs
from openinfer_testing import ZeroCostExecutor

GROUPS = (
    CacheGroup(name="full", planes=(Plane(name="kv", bytes_per_token=64),)),
    CacheGroup(name="state", kind="state", planes=(Plane(name="s", bytes_per_token=4096),)),
)


ABILITIES = frozenset({"several_groups", "state_groups", "copies"})


class TwoGroups(ZeroCostExecutor):
    """An executor with a full cache group and a state group."""

    def __init__(self, abilities=ABILITIES):
        super().__init__()
        self.abilities = abilities
        self.is_closed = False

    @property
    def info(self):
        return replace(super().info, cache_groups=GROUPS, num_blocks=8, abilities=self.abilities)

    def close(self):
        self.is_closed = True


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


@pytest.mark.parametrize("missing", sorted(ABILITIES))
def test_cache_groups_that_the_executor_would_ignore_are_refused(missing):
    executor = TwoGroups(ABILITIES - {missing})
    with pytest.raises(UnsupportedPlans, match=missing) as refused:
        assemble(executor, EngineOptions())
    assert set(refused.value.missing) == {missing}
    assert executor.is_closed


def test_states_need_no_copies_without_a_prefix_cache():
    executor = TwoGroups(ABILITIES - {"copies"})
    assemble(executor, EngineOptions(enable_prefix_caching=False)).close()


@pytest.mark.parametrize(
    ("ability", "switch"),
    [
        ("drafts", {"num_draft_tokens": 3}),
        ("adapters", {"max_adapters": 2}),
        ("roles", {"role": "prefill"}),
    ],
)
def test_switches_of_the_scheduler_that_the_executor_would_ignore_are_refused(ability, switch):
    info = ZeroCostExecutor().info
    plain = _scheduler_config(info, EngineOptions())
    check_abilities(info, plain, has_prefix_cache=True)
    config = dataclasses.replace(plain, **switch)
    with pytest.raises(UnsupportedPlans) as refused:
        check_abilities(info, config, has_prefix_cache=True)
    assert set(refused.value.missing) == {ability}
    able = replace(info, abilities=frozenset({ability}))
    check_abilities(able, config, has_prefix_cache=True)
