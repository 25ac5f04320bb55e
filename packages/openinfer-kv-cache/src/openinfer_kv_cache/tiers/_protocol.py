"""What a tier is: a place beyond the device where blocks live under their keys.

    device ──seal──> tier          saved while the source is pinned
    device <──load── hit <──resolve── tier      loaded into blocks that nobody else knows

A tier never sees a request. `TierLoads` and `TierSaves` stand between it and the cache: they lease
the blocks, compare token ids, and turn whatever fails into a recompute.
"""

from dataclasses import dataclass
from typing import Protocol

from openinfer_kv_cache.eviction._lru import BlockIds


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSpan:
    """Consecutive blocks of one chain, by what they hold.

    Attributes:
        keys: one a block, 16 bytes each.
        token_ids: u32 column of all their tokens.
    """

    keys: tuple[bytes, ...]
    token_ids: bytes

    @property
    def bytes_per_block(self) -> int:
        """Bytes of the column that belong to one block."""
        return len(self.token_ids) // max(1, len(self.keys))


class BlockMemory(Protocol):
    """The device's blocks, as a tier that copies them sees them."""

    def read(self, block: int, /) -> bytes:
        """The content of a block, all groups' layers."""
        ...

    def write(self, block: int, content: bytes, /) -> None:
        """Replace it."""
        ...


class TierTransfer(Protocol):
    """A copy under way. It cannot be cancelled: its blocks are held until it is over."""

    @property
    def error(self) -> str | None:
        """Why it failed, once it is over; None: every block has arrived."""
        ...

    def poll(self) -> bool:
        """Whether it is over; never blocks. It does not touch a block afterwards."""
        ...


class TierHit(Protocol):
    """Leading blocks of a span that a tier holds, pinned there until loaded or closed."""

    @property
    def num_blocks(self) -> int:
        """At least 1."""
        ...

    @property
    def token_ids(self) -> bytes:
        """u32 column of the tokens that were sealed with these blocks."""
        ...

    def load(self, block_ids: BlockIds, /) -> TierTransfer:
        """Begin to copy the first `len(block_ids)` blocks; consumes the hit.

        Raises:
            LeaseUsed: it was loaded or closed.
        """
        ...

    def close(self) -> None:
        """Let the blocks go unused; consumes the hit.

        Raises:
            LeaseUsed: it was loaded or closed.
        """
        ...


class CacheTier(Protocol):
    """One tier of one namespace: model, weights version, dtype and layout are settled before.

    Called from the step thread; no method blocks. Blocks are found as long as the tier has room.
    """

    @property
    def name(self) -> str:
        """What metrics call it: "host", "disk", "peer"."""
        ...

    def resolve(self, span: BlockSpan, /) -> TierHit | None:
        """Pin the longest prefix of a span that is here in full; None if its first block is not.

        A block is here once its transfer is over without error.
        """
        ...

    def seal(self, span: BlockSpan, block_ids: BlockIds, /) -> TierTransfer:
        """Begin to save a span from these blocks of the device.

        The caller holds them until the transfer is over. Blocks that are here already need no
        copy; what finds no room is left out, which is no error.
        """
        ...

    def retire(self) -> None:
        """Forget every block, and those that are on their way; hits keep theirs to the end."""
        ...
