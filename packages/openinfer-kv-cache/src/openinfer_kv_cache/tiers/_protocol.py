"""The `CacheTier` Protocol: storage beyond the device that holds blocks by their keys.

    device ──seal──> tier          saved while the source is pinned
    device <──load── hit <──resolve── tier      loaded into private blocks

A tier never sees a request. `TierLoads` and `TierSaves` connect it to the cache: they lease the
blocks, compare token ids, and turn every failure into a recompute.
"""

from dataclasses import dataclass
from typing import Protocol

from openinfer_kv_cache.eviction._lru import BlockIds


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpan:
    """Consecutive blocks of one chain: keys and tokens.

    Attributes:
        keys: one for each block, 16 bytes each.
        token_ids: token ids of all blocks, as little-endian u32 bytes.
    """

    keys: tuple[bytes, ...]
    token_ids: bytes

    @property
    def bytes_per_block(self) -> int:
        """Bytes of `token_ids` that belong to one block."""
        return len(self.token_ids) // max(1, len(self.keys))


class BlockMemory(Protocol):
    """Access to the content of the device's blocks, for a tier that copies them."""

    def read(self, block: int, /) -> bytes:
        """Returns the content of a block, over all layers."""
        ...

    def write(self, block: int, content: bytes, /) -> None:
        """Replaces the content of a block."""
        ...


class TierTransfer(Protocol):
    """A copy in progress. It cannot be cancelled: its blocks are held until it has ended."""

    @property
    def error(self) -> str | None:
        """Why the ended transfer failed; None if every block has arrived."""
        ...

    def poll(self) -> bool:
        """Returns whether the transfer has ended. Never blocks. Touches no block afterwards."""
        ...


class TierHit(Protocol):
    """Leading blocks of a span that a tier holds, pinned there until loaded or closed."""

    @property
    def num_blocks(self) -> int:
        """Number of blocks found; at least 1."""
        ...

    @property
    def token_ids(self) -> bytes:
        """Token ids that were saved with these blocks, as little-endian u32 bytes."""
        ...

    def load(self, block_ids: BlockIds, /) -> TierTransfer:
        """Begins to copy the first `len(block_ids)` blocks. Consumes the hit.

        Raises:
            LeaseUsed: the hit was loaded or closed already.
        """
        ...

    def close(self) -> None:
        """Releases the blocks unused. Consumes the hit.

        Raises:
            LeaseUsed: the hit was loaded or closed already.
        """
        ...


class CacheTier(Protocol):
    """One tier for one namespace, that is one model, weights version, dtype and layout.

    All calls come from the step thread, and no method blocks. A tier may evict blocks at any time.
    """

    @property
    def name(self) -> str:
        """Name in metrics: "host", "disk", "peer"."""
        ...

    def resolve(self, span: BlockSpan, /) -> TierHit | None:
        """Pins the longest prefix of a span that the tier has; None if it lacks the first block.

        A block can be found once its transfer has ended without error.
        """
        ...

    def seal(self, span: BlockSpan, block_ids: BlockIds, /) -> TierTransfer:
        """Begins to save a span from these blocks of the device.

        The caller holds the blocks until the transfer has ended. Blocks that the tier has already
        need no copy. Leaving out blocks for lack of room is not an error.
        """
        ...

    def retire(self) -> None:
        """Removes every block, those in transfer included. Hits keep their blocks to the end."""
        ...
