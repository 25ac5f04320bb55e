"""A tier in the memory of the process: the reference that other tiers are tested against."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import final

from openinfer_kv_cache.errors import LeaseUsed
from openinfer_kv_cache.eviction._lru import BlockIds
from openinfer_kv_cache.tiers._protocol import BlockMemory, BlockSpan


@final
class _Stored:
    """Tokens and content of one block. A hit keeps it alive even if the tier evicts it."""

    __slots__ = ("content", "token_ids")

    def __init__(self, token_ids: bytes, content: bytes) -> None:
        self.token_ids = token_ids
        self.content = content


@final
class MemoryTransfer:
    """A copy that is made at the `num_polls`-th poll.

    Attributes:
        error: always None.
    """

    __slots__ = ("_copy", "_num_polls", "error")

    def __init__(self, copy: Callable[[], None], num_polls: int) -> None:
        self._copy = copy
        self._num_polls = num_polls
        self.error: str | None = None

    def poll(self) -> bool:
        """See `TierTransfer.poll`."""
        self._num_polls -= 1
        if self._num_polls == 0:
            self._copy()
        return self._num_polls <= 0


@final
class MemoryHit:
    """Blocks found in a `MemoryTier`."""

    __slots__ = ("_found", "_memory", "_num_polls")

    def __init__(self, memory: BlockMemory, found: Sequence[_Stored], num_polls: int) -> None:
        self._memory = memory
        self._found: Sequence[_Stored] | None = found
        self._num_polls = num_polls

    @property
    def num_blocks(self) -> int:
        """See `TierHit.num_blocks`."""
        return len(self._held())

    @property
    def token_ids(self) -> bytes:
        """See `TierHit.token_ids`."""
        return b"".join(stored.token_ids for stored in self._held())

    def load(self, block_ids: BlockIds, /) -> MemoryTransfer:
        """See `TierHit.load`."""
        found, memory = self._held(), self._memory
        self._found = None

        def copy() -> None:
            for block, stored in zip(block_ids.tolist(), found, strict=False):
                memory.write(block, stored.content)

        return MemoryTransfer(copy, self._num_polls)

    def close(self) -> None:
        """See `TierHit.close`."""
        self._held()
        self._found = None

    def _held(self) -> Sequence[_Stored]:
        if self._found is None:
            raise LeaseUsed("the hit was loaded or closed already")
        return self._found


class MemoryTier:
    """A tier that keeps the most recently used blocks.

    Copies as late as the protocol allows, so that tests find callers that release blocks too early.

    Args:
        memory: access to the device's blocks.
        max_blocks: number of blocks to keep. Evicted blocks stay alive in hits.
        num_polls: number of polls after which a transfer copies and ends.
        name: see `CacheTier`.
    """

    def __init__(
        self, memory: BlockMemory, *, max_blocks: int, num_polls: int = 1, name: str = "host"
    ) -> None:
        if max_blocks < 1 or num_polls < 1:
            raise ValueError(
                f"max_blocks={max_blocks} and num_polls={num_polls} must both be at least 1"
            )
        self.name = name
        self._memory = memory
        self._max_blocks = max_blocks
        self._num_polls = num_polls
        self._blocks: OrderedDict[bytes, _Stored] = OrderedDict()
        self._generation = 0

    @property
    def num_blocks(self) -> int:
        """Number of stored blocks."""
        return len(self._blocks)

    def resolve(self, span: BlockSpan, /) -> "MemoryHit | None":
        """See `CacheTier.resolve`."""
        found = []
        for key in span.keys:
            stored = self._blocks.get(key)
            if stored is None:
                break
            self._blocks.move_to_end(key)
            found.append(stored)
        return MemoryHit(self._memory, found, self._num_polls) if found else None

    def seal(self, span: BlockSpan, block_ids: BlockIds, /) -> "MemoryTransfer":
        """See `CacheTier.seal`."""
        generation, size = self._generation, span.bytes_per_block

        def copy() -> None:
            if generation != self._generation:
                return
            # From the end, so that the span never evicts its own prefix.
            for index in reversed(range(len(span.keys))):
                key, block = span.keys[index], int(block_ids[index])
                if key not in self._blocks:
                    token_ids = span.token_ids[index * size : (index + 1) * size]
                    self._blocks[key] = _Stored(token_ids, self._memory.read(block))
                self._blocks.move_to_end(key)
            while len(self._blocks) > self._max_blocks:
                self._blocks.popitem(last=False)

        return MemoryTransfer(copy, self._num_polls)

    def retire(self) -> None:
        """See `CacheTier.retire`."""
        self._generation += 1
        self._blocks.clear()
