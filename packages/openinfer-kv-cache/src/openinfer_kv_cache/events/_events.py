"""KV cache events, as vLLM defines them.

A block is *stored* when it has landed: it is in the index, and the step that wrote it has
completed. It is *removed* when it leaves the index. A subscriber that applies all events in order
knows the index as of the last completed step.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.events._dynamo import root_hash, sequence_hashes
from openinfer_kv_cache.groups._cache_group import CacheGroup

DEVICE_MEDIUM = "GPU"
"""Name of the device tier on the wire, on CPUs too."""

_SPEC_KINDS = {"full": "full_attention", "window": "sliding_window", "state": "mamba"}


class BlockStored(Struct, frozen=True, tag=True, omit_defaults=True):
    """Consecutive blocks of one chain have entered the prefix cache.

    Attributes:
        block_hashes: one chained hash for each block: Dynamo's u64 sequence hashes.
        parent_block_hash: hash of the previous block; None at the start of a sequence.
        token_ids: token ids of all these blocks.
        block_size: number of tokens in a block.
        lora_id: always None; adapters are named by `lora_name`.
        medium: the tier, "GPU" for the device.
        lora_name: the adapter's uid in hex; None for the base model.
        extra_keys: for each block, the parts of its hash besides tokens: the adapter, and in the
            first block of a sequence the salt; None if a block has neither.
        group_idx: index of the cache group.
        kv_cache_spec_kind: "full_attention", "sliding_window" or "mamba".
        kv_cache_spec_sliding_window: number of tokens in the window.
    """

    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(Struct, frozen=True, tag=True, omit_defaults=True):
    """Blocks have left the prefix cache, children before parents."""

    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Struct, frozen=True, tag=True, omit_defaults=True):
    """The prefix cache is empty, in every group and tier."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class CacheEvents:
    """Events of one cache that have not been taken yet, in order. Step thread only."""

    def __init__(self) -> None:
        self._pending: list[KVEvent] = []

    def group(self, index: int, group: CacheGroup) -> "GroupEvents":
        """Returns the recorder of one group; `take` returns the events of all groups."""
        return GroupEvents(self._pending, index, group)

    def take(self) -> list[KVEvent]:
        """Returns the events since the last call and removes them."""
        events = self._pending.copy()
        self._pending.clear()
        return events


class GroupEvents:
    """Recorder of one group's events on the device tier."""

    __slots__ = ("_announced", "_block_size", "_index", "_kind", "_pending")

    def __init__(self, pending: list[KVEvent], index: int, group: CacheGroup) -> None:
        self._pending = pending
        self._index = index
        self._kind = _SPEC_KINDS[group.kind]
        self._block_size = group.tokens_per_block
        self._announced: dict[bytes, int] = {}

    def landed(self, keys: BlockKeys, start: int, stop: int) -> None:
        """Records that blocks `[start, stop)` of a chain are indexed and written."""
        announced = self._announced
        chain = keys.slice(start, stop)
        new = [start + i for i, key in enumerate(chain) if key not in announced]
        for first, last in _runs(new):
            column, above = keys.token_column(first, last), self._hash_above(keys, first)
            hashes = sequence_hashes(column, self._block_size, above)
            announced.update(zip(chain[first - start : last - start], hashes, strict=True))
            adapter = keys.adapter_uid.hex() or None
            self._pending.append(
                BlockStored(
                    block_hashes=[*hashes],
                    parent_block_hash=above if first else None,
                    token_ids=np.frombuffer(column, "<u4").tolist(),
                    block_size=self._block_size,
                    lora_id=None,
                    medium=DEVICE_MEDIUM,
                    lora_name=adapter,
                    extra_keys=_extra_keys(adapter, keys.salt, first, last),
                    group_idx=self._index,
                    kv_cache_spec_kind=self._kind,
                )
            )

    def removed(self, block_keys: Iterable[bytes]) -> None:
        """Records that these keys have left the index. Skips keys that were never announced."""
        announced = self._announced
        hashes = [announced.pop(key) for key in block_keys if key in announced]
        if hashes:
            self._pending.append(BlockRemoved([*hashes], DEVICE_MEDIUM, self._index))

    def cleared(self) -> None:
        """Records that the whole index was reset."""
        self._announced.clear()
        if self._pending != [AllBlocksCleared()]:
            self._pending.clear()
            self._pending.append(AllBlocksCleared())

    def _hash_above(self, keys: BlockKeys, block: int) -> int | None:
        """Returns the hash to which the block's own hash is chained."""
        root = root_hash(keys.seed)
        if block == 0:
            return root
        (parent,) = keys.slice(block - 1, block)
        known = self._announced.get(parent)
        if known is not None:
            return known
        return sequence_hashes(keys.token_column(0, block), self._block_size, root)[-1]


def _runs(numbers: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Yields increasing numbers as half-open intervals of consecutive ones."""
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[start], numbers[i - 1] + 1
            start = i


def _extra_keys(
    adapter: str | None, salt: bytes, first: int, last: int
) -> list[list[str] | None] | None:
    if adapter is None and not salt:
        return None
    each = [] if adapter is None else [adapter]
    keys: list[list[str] | None] = [each or None] * (last - first)
    if first == 0 and salt:
        keys[0] = [*each, salt.decode("utf-8", "backslashreplace")]
    return keys
