"""What happens to cached blocks, in the words of vLLM's KV events.

A block is *stored* when it has landed: it is indexed and the step that wrote it has completed. It
is *removed* when the index forgets it. Blocks of a step that is reverted were never announced, so
nothing is said of them. Whoever applies all events in order knows the index as of the last step.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

from openinfer_kv_cache._keys import BlockKeys
from openinfer_kv_cache.events._dynamo import root_hash, sequence_hashes
from openinfer_kv_cache.groups._cache_group import CacheGroup

DEVICE_MEDIUM = "GPU"
"""The device tier on the wire, whatever the device is."""

_SPEC_KINDS = {"full": "full_attention", "window": "sliding_window", "state": "mamba"}


class BlockStored(Struct, frozen=True, tag=True, omit_defaults=True):
    """Consecutive blocks of one chain can be found from now on.

    Attributes:
        block_hashes: chained, one a block; ours are Dynamo's u64 sequence hashes.
        parent_block_hash: of the block before; None at the start of a sequence.
        token_ids: of all these blocks.
        block_size: tokens of one.
        lora_id: always None here.
        medium: the tier, "GPU" for the device.
        lora_name: the adapter's uid in hex; None for the base model.
        extra_keys: per block what its hash holds besides tokens: the adapter, and in a sequence's
            first block the salt; None where there is neither.
        group_idx: number of the cache group.
        kv_cache_spec_kind: "full_attention", "sliding_window" or "mamba".
        kv_cache_spec_sliding_window: tokens of the window.
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
    """Blocks cannot be found any more, children before parents."""

    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Struct, frozen=True, tag=True, omit_defaults=True):
    """Nothing can be found any more, in any group and tier."""


KVEvent = BlockStored | BlockRemoved | AllBlocksCleared


class CacheEvents:
    """The events of one cache since they were last taken, in order. For the step thread."""

    def __init__(self) -> None:
        self._pending: list[KVEvent] = []

    def group(self, index: int, group: CacheGroup) -> "GroupEvents":
        """The events of one group; they are taken with those of all."""
        return GroupEvents(self._pending, index, group)

    def take(self) -> list[KVEvent]:
        """Everything since the last call."""
        events = self._pending.copy()
        self._pending.clear()
        return events


class GroupEvents:
    """The announced blocks of one group and tier, and what becomes of them."""

    __slots__ = ("_announced", "_block_size", "_index", "_kind", "_pending")

    def __init__(self, pending: list[KVEvent], index: int, group: CacheGroup) -> None:
        self._pending = pending
        self._index = index
        self._kind = _SPEC_KINDS[group.kind]
        self._block_size = group.tokens_per_block
        self._announced: dict[bytes, int] = {}

    def landed(self, keys: BlockKeys, start: int, stop: int) -> None:
        """Blocks `[start, stop)` of a chain are indexed and written."""
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

    def forget(self, block_keys: Iterable[bytes]) -> None:
        """These keys are not indexed any more; those never announced are passed over."""
        announced = self._announced
        hashes = [announced.pop(key) for key in block_keys if key in announced]
        if hashes:
            self._pending.append(BlockRemoved([*hashes], DEVICE_MEDIUM, self._index))

    def clear(self) -> None:
        """No key of any group is indexed any more."""
        self._announced.clear()
        if self._pending != [AllBlocksCleared()]:
            self._pending.clear()
            self._pending.append(AllBlocksCleared())

    def _hash_above(self, keys: BlockKeys, block: int) -> int | None:
        """The hash that the block's own is chained to."""
        root = root_hash(keys.seed)
        if block == 0:
            return root
        (parent,) = keys.slice(block - 1, block)
        known = self._announced.get(parent)
        if known is not None:
            return known
        return sequence_hashes(keys.token_column(0, block), self._block_size, root)[-1]


def _runs(numbers: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Rising numbers as half-open intervals."""
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
