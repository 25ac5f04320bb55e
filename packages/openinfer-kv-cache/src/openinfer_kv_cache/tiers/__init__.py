"""Tiers beyond the device: the Protocol, an in-memory tier, and loading and saving.

This module is public: these are all the names needed to write a tier.
"""

from openinfer_kv_cache.tiers._loads import LoadState, TierLoad, TierLoads
from openinfer_kv_cache.tiers._memory import MemoryTier
from openinfer_kv_cache.tiers._protocol import (
    BlockMemory,
    BlockSpan,
    CacheTier,
    TierHit,
    TierTransfer,
)
from openinfer_kv_cache.tiers._saves import TierSaves

__all__ = [
    "CacheTier",
    "TierHit",
    "TierTransfer",
    "BlockSpan",
    "BlockMemory",
    "MemoryTier",
    "TierLoads",
    "TierLoad",
    "LoadState",
    "TierSaves",
]
