"""The tier that cached blocks came from, until the first sequence uses them."""

import numpy as np

from openinfer_kv_cache.eviction._lru import BlockIds

DEVICE = "device"

TierTokens = tuple[tuple[str, int], ...]
"""Pairs of tier name and number of tokens, the device first."""


class BlockOrigins:
    """Marks the blocks that were loaded from a tier. Computing a block again clears its mark.

    Args:
        num_blocks: upper bound of the block ids.

    Attributes:
        names: the device, then the tiers.
    """

    def __init__(self, num_blocks: int) -> None:
        self.names = [DEVICE]
        self._tiers = np.zeros(num_blocks, np.int8)

    def add_tier(self, tier: str) -> None:
        """Registers a tier that may load blocks."""
        if tier not in self.names:
            self.names.append(tier)

    def mark(self, ids: BlockIds, tier: str) -> None:
        """Records that a tier has loaded these blocks."""
        self._tiers[ids] = self.names.index(tier)

    def clear(self, ids: BlockIds) -> None:
        """Records that the device has computed these blocks."""
        self._tiers[ids] = 0

    def take(self, ids: BlockIds) -> list[int]:
        """Returns the number of blocks from each of `names`, and clears their marks."""
        counts = np.bincount(self._tiers[ids], minlength=len(self.names))
        self._tiers[ids] = 0
        return [int(count) for count in counts]
