"""Conformance suite of `CacheTier`, and broken tiers that each of its rules must catch."""

from openinfer_testing.tier._broken import BROKEN_TIERS, BrokenTier
from openinfer_testing.tier._harness import TierFactory, TierSession
from openinfer_testing.tier._rules import TIER_RULES, TierRule
from openinfer_testing.tier._suite import TierConformance

__all__ = [
    "TierConformance",
    "TierFactory",
    "TierRule",
    "TIER_RULES",
    "TierSession",
    "BrokenTier",
    "BROKEN_TIERS",
]
