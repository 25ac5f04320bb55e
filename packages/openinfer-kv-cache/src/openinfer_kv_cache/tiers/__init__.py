"""Tiers beyond the device: the Protocol, the oracle, and how the cache loads and saves.

Public, beside the package itself: who writes a tier needs these names and no others.
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
