"""The suite as pytest runs it."""

import pytest

from openinfer_testing.tier._harness import TierFactory
from openinfer_testing.tier._rules import TIER_RULES, TierRule


class TierConformance:
    """Subclass it, provide the fixture, and pytest holds your tier to every rule.

    class TestMyTier(TierConformance):
        @pytest.fixture
        def tier_factory(self):
            return lambda memory, max_blocks: MyTier(memory, max_blocks)
    """

    @pytest.fixture
    def tier_factory(self) -> TierFactory:
        """Makes the tier under test."""
        raise NotImplementedError("provide the fixture tier_factory")

    @pytest.mark.parametrize("rule", TIER_RULES.values(), ids=TIER_RULES.keys())
    def test_rule(self, rule: TierRule, tier_factory: TierFactory) -> None:
        """One rule."""
        rule.check(tier_factory)
