"""Tier suite for pytest."""

import pytest

from openinfer_testing.tier._harness import TierFactory
from openinfer_testing.tier._rules import TIER_RULES, TierRule


class TierConformance:
    """Test class with one test for each rule. Subclass it and provide the fixture `tier_factory`.

    class TestMyTier(TierConformance):
        @pytest.fixture
        def tier_factory(self):
            return lambda memory, max_blocks: MyTier(memory, max_blocks)
    """

    @pytest.fixture
    def tier_factory(self) -> TierFactory:
        """Returns the factory of the tier under test."""
        raise NotImplementedError("provide the fixture tier_factory")

    @pytest.mark.parametrize("rule", TIER_RULES.values(), ids=TIER_RULES.keys())
    def test_rule(self, rule: TierRule, tier_factory: TierFactory) -> None:
        """Checks one rule."""
        rule.check(tier_factory)
