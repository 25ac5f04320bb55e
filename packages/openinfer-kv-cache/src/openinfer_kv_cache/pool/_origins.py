"""Which tier cached blocks came from, until the first sequence begins on them."""

import numpy as np

from openinfer_kv_cache.eviction._lru import BlockIds

DEVICE = "device"

TierTokens = tuple[tuple[str, int], ...]
"""Tokens by tier, the device's first."""


class BlockOrigins:
    """Marks blocks that a tier has brought; whoever computes a block again takes its mark off.

    Args:
        num_blocks: ids are below it.

    Attributes:
        names: the device, and then the tiers.
    """

    def __init__(self, num_blocks: int) -> None:
        self.names = [DEVICE]
        self._tiers = np.zeros(num_blocks, np.int8)

    def name(self, tier: str) -> None:
        """A tier of this name may bring blocks."""
        if tier not in self.names:
            self.names.append(tier)

    def mark(self, ids: BlockIds, tier: str) -> None:
        """A tier has brought what these blocks hold."""
        self._tiers[ids] = self.names.index(tier)

    def clear(self, ids: BlockIds) -> None:
        """The device has computed what these blocks hold."""
        self._tiers[ids] = 0

    def take(self, ids: BlockIds) -> list[int]:
        """Blocks by tier, as in `names`; from now on they are the device's."""
        counts = np.bincount(self._tiers[ids], minlength=len(self.names))
        self._tiers[ids] = 0
        return [int(count) for count in counts]
