"""Harness of the tier suite: a device of bytes, a tier over it, and spans to copy."""

import time
from collections.abc import Callable, Iterable

import numpy as np

from openinfer_kv_cache import BlockIds, BlockKeys
from openinfer_kv_cache.tiers import BlockMemory, BlockSpan, CacheTier, TierHit, TierTransfer

TierFactory = Callable[[BlockMemory, int], CacheTier]
"""Makes an empty tier over a device's blocks. The number is the most blocks that it may hold."""

PATIENCE_S = 10.0
NUM_DEVICE_BLOCKS = 32
TOKENS_PER_BLOCK = 4


class Device:
    """Blocks of bytes that record which blocks were written.

    Attributes:
        blocks: Content by block id.
        written: Ids of the blocks written since the set was last cleared.
    """

    def __init__(self) -> None:
        self.blocks = [bytes([block]) * 64 for block in range(NUM_DEVICE_BLOCKS)]
        self.written: set[int] = set()

    def read(self, block: int, /) -> bytes:
        """See `BlockMemory.read`."""
        return self.blocks[block]

    def write(self, block: int, content: bytes, /) -> None:
        """See `BlockMemory.write`."""
        self.written.add(block)
        self.blocks[block] = content


class TierSession:
    """One empty tier under test, with methods to fill and query it.

    Attributes:
        device: The blocks that the tier copies from and to.
        tier: The tier under test.
        max_blocks: Upper bound of the blocks that the tier may hold.
    """

    def __init__(self, factory: TierFactory, max_blocks: int) -> None:
        self.device = Device()
        self.max_blocks = max_blocks
        self.tier = factory(self.device, max_blocks)

    def span(self, name: int, stop: int, start: int = 0) -> BlockSpan:
        """Returns blocks `[start, stop)` of the chain number `name`."""
        keys = BlockKeys(TOKENS_PER_BLOCK, keeps_token_ids=True)
        rng = np.random.default_rng(name)
        keys.extend(rng.integers(0, 2**32, 64 * TOKENS_PER_BLOCK, dtype=np.uint32))
        return BlockSpan(
            keys=tuple(keys.slice(start, stop)), token_ids=keys.token_column(start, stop)
        )

    def content(self, name: int, index: int) -> bytes:
        """Returns the bytes of block `index` of a chain."""
        return name.to_bytes(4, "little") * 8 + index.to_bytes(4, "little") * 8

    def seal(self, name: int, stop: int, start: int = 0) -> TierTransfer:
        """Begins to save blocks `[start, stop)` of a chain from the device's first blocks."""
        for index in range(start, stop):
            self.device.blocks[index - start] = self.content(name, index)
        ids = np.arange(stop - start, dtype=np.int32)
        return self.tier.seal(self.span(name, stop, start), ids)

    def save(self, name: int, stop: int, start: int = 0) -> None:
        """Saves blocks `[start, stop)` of a chain, then overwrites the device's blocks."""
        self.finish(self.seal(name, stop, start))
        self.scribble(range(stop - start))

    def scribble(self, blocks: Iterable[int]) -> None:
        """Overwrites device blocks that no transfer may read any more."""
        for block in blocks:
            self.device.blocks[block] = b"\xff" * 64

    def finish(self, transfer: TierTransfer) -> None:
        """Polls a transfer until it has completed without error."""
        end = time.monotonic() + PATIENCE_S
        while not transfer.poll():
            assert time.monotonic() < end, f"a transfer did not complete within {PATIENCE_S:g} s"
        assert transfer.error is None, transfer.error

    def count(self, name: int, stop: int, start: int = 0) -> int:
        """Returns the number of leading blocks of a span that the tier finds."""
        hit = self.tier.resolve(self.span(name, stop, start))
        if hit is None:
            return 0
        num = hit.num_blocks
        hit.close()
        return num

    def load(self, hit: TierHit, block_ids: BlockIds) -> None:
        """Loads a hit completely."""
        self.finish(hit.load(block_ids))

    def hit(self, name: int, stop: int, start: int = 0) -> TierHit:
        """Returns a hit, which must exist."""
        hit = self.tier.resolve(self.span(name, stop, start))
        assert hit is not None, "the tier must find a block whose save has completed"
        return hit
