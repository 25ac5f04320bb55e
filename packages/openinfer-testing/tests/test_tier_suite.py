"""Every rule of the tier suite catches at least one broken tier, and no correct one."""

import pytest

from openinfer_kv_cache.tiers import MemoryTier
from openinfer_testing.tier import BROKEN_TIERS, TIER_RULES, BrokenTier, TierConformance

CASES = [(broken, rule) for broken, rules in BROKEN_TIERS.items() for rule in rules]


@pytest.mark.parametrize(
    ("broken", "rule"), CASES, ids=[f"{broken.__name__}-{rule}" for broken, rule in CASES]
)
def test_broken_tier_is_caught(broken: type[BrokenTier], rule: str) -> None:
    with pytest.raises(AssertionError):
        TIER_RULES[rule].check(broken)


def test_every_rule_catches_something() -> None:
    assert {rule for rules in BROKEN_TIERS.values() for rule in rules} == {*TIER_RULES}


@pytest.mark.parametrize("rule", TIER_RULES)
def test_a_tier_without_a_fault_is_not_caught(rule: str) -> None:
    TIER_RULES[rule].check(BrokenTier)


class TestMemoryTier(TierConformance):
    @pytest.fixture(params=[1, 3], ids=["at once", "late"])
    def tier_factory(self, request):
        def factory(memory, max_blocks):
            return MemoryTier(memory, max_blocks=max_blocks, num_polls=request.param)

        return factory
