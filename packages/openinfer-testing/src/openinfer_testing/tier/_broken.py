"""Tiers that break one rule each, and the rules that must catch them."""

from collections.abc import Callable, Mapping, Sequence

from openinfer_kv_cache import BlockIds, LeaseUsed
from openinfer_kv_cache.tiers import BlockMemory, BlockSpan

_Copy = Callable[[], None]


class _Transfer:
    """Transfer that copies at its second poll, which is as late as the contract allows."""

    def __init__(self, copy: _Copy) -> None:
        self._copy: _Copy | None = copy
        self._num_polls = 0
        self.error: str | None = None

    def poll(self) -> bool:
        self._num_polls += 1
        if self._num_polls > 1 and self._copy is not None:
            self._copy()
            self._copy = None
        return self._num_polls > 1


class _Hit:
    def __init__(self, tier: "BrokenTier", keys: Sequence[bytes]) -> None:
        self.tier = tier
        self.keys = keys
        self.found = [tier.blocks[key] for key in keys]
        self.is_used = False

    @property
    def num_blocks(self) -> int:
        return len(self.keys)

    @property
    def token_ids(self) -> bytes:
        return b"".join(token_ids for token_ids, _ in self.found)

    def load(self, block_ids: BlockIds, /) -> _Transfer:
        self.use()
        return _Transfer(lambda: self.tier.copy_out(self, block_ids.tolist()))

    def close(self) -> None:
        self.use()

    def use(self) -> None:
        if self.is_used:
            raise LeaseUsed("the hit was used")
        self.is_used = True


class BrokenTier:
    """Correct tier in memory. Each subclass changes one thing."""

    name = "broken"

    def __init__(self, memory: BlockMemory, max_blocks: int) -> None:
        self.memory = memory
        self.max_blocks = max_blocks
        self.blocks: dict[bytes, tuple[bytes, bytes]] = {}
        self.generation = 0

    def resolve(self, span: BlockSpan, /) -> _Hit | None:
        """See `CacheTier.resolve`."""
        num = self.num_found(span.keys)
        return self.make_hit(span.keys[:num]) if num else None

    def seal(self, span: BlockSpan, block_ids: BlockIds, /) -> _Transfer:
        """See `CacheTier.seal`."""
        generation = self.generation
        return _Transfer(lambda: self.copy_in(span, block_ids.tolist(), generation))

    def retire(self) -> None:
        """See `CacheTier.retire`."""
        self.generation += 1
        self.blocks.clear()

    def num_found(self, keys: Sequence[bytes]) -> int:
        """Returns the number of leading blocks that the tier holds."""
        num = 0
        while num < len(keys) and keys[num] in self.blocks:
            num += 1
        return num

    def make_hit(self, keys: Sequence[bytes]) -> _Hit:
        """Returns a hit of these blocks."""
        return _Hit(self, keys)

    def copy_in(self, span: BlockSpan, block_ids: Sequence[int], generation: int) -> None:
        """Completes a save."""
        if generation != self.generation:
            return
        size = span.bytes_per_block
        for index, (key, block) in enumerate(zip(span.keys, block_ids, strict=True)):
            while len(self.blocks) >= self.max_blocks and key not in self.blocks:
                self.evict()
            token_ids = span.token_ids[index * size : (index + 1) * size]
            self.blocks.setdefault(key, (token_ids, self.memory.read(block)))

    def evict(self) -> None:
        """Evicts the oldest block."""
        del self.blocks[next(iter(self.blocks))]

    def copy_out(self, hit: _Hit, block_ids: Sequence[int]) -> None:
        """Completes a load."""
        for block, (_, content) in zip(block_ids, hit.found, strict=False):
            self.memory.write(block, content)


class MixesBlocks(BrokenTier):
    """Loads blocks in another order."""

    def copy_out(self, hit: _Hit, block_ids: Sequence[int]) -> None:
        super().copy_out(hit, sorted(block_ids))


class LosesTokenIds(BrokenTier):
    """Returns the token ids that were asked for instead of those that were sealed."""

    def resolve(self, span: BlockSpan, /) -> _Hit | None:
        hit = super().resolve(span)
        if hit is not None:
            hit.found[-1] = (span.token_ids[-span.bytes_per_block :], hit.found[-1][1])
        return hit


class SkipsGaps(BrokenTier):
    """Finds blocks after a missing one."""

    def resolve(self, span: BlockSpan, /) -> _Hit | None:
        keys = [key for key in span.keys if key in self.blocks]
        return self.make_hit(keys) if keys else None


class IndexesEarly(BrokenTier):
    """Finds blocks before their bytes have arrived."""

    def seal(self, span: BlockSpan, block_ids: BlockIds, /) -> _Transfer:
        for key in span.keys:
            self.blocks.setdefault(key, (b"", b""))
        return super().seal(span, block_ids)


class ReadsLate(BrokenTier):
    """Reads the source after the save has completed."""

    def copy_in(self, span: BlockSpan, block_ids: Sequence[int], generation: int) -> None:
        super().copy_in(span, block_ids, generation)
        self.sources = getattr(self, "sources", {}) | dict(zip(span.keys, block_ids, strict=True))

    def make_hit(self, keys: Sequence[bytes]) -> _Hit:
        hit = super().make_hit(keys)
        hit.found = [
            (token_ids, self.memory.read(self.sources[key]))
            for key, (token_ids, _) in zip(keys, hit.found, strict=True)
        ]
        return hit


class WritesAgain(BrokenTier):
    """Repeats the previous load with every load."""

    def copy_out(self, hit: _Hit, block_ids: Sequence[int]) -> None:
        before = getattr(self, "before", None)
        if before is not None:
            super().copy_out(*before)
        super().copy_out(hit, block_ids)
        self.before = (hit, block_ids)


class LoadsEverything(BrokenTier):
    """Writes every block of a hit, even if fewer block ids were given."""

    def copy_out(self, hit: _Hit, block_ids: Sequence[int]) -> None:
        first = min(block_ids)
        super().copy_out(hit, [*block_ids, *range(first, first + 8)][: hit.num_blocks])


class EvictsPinned(BrokenTier):
    """Evicts blocks that a hit refers to."""

    def copy_out(self, hit: _Hit, block_ids: Sequence[int]) -> None:
        hit.found = [self.blocks.get(key, (b"", b"")) for key in hit.keys]
        super().copy_out(hit, block_ids)


class Grows(BrokenTier):
    """Evicts nothing."""

    def __init__(self, memory: BlockMemory, max_blocks: int) -> None:
        super().__init__(memory, 10**9)


class StopsSavingWhenFull(BrokenTier):
    """Drops everything when it is full and saves nothing afterwards."""

    def evict(self) -> None:
        self.generation += 1
        self.blocks = dict.fromkeys(map(bytes, range(1, self.max_blocks)), (b"", b""))


class CountsTwice(BrokenTier):
    """Evicts to save a block that it already holds."""

    def copy_in(self, span: BlockSpan, block_ids: Sequence[int], generation: int) -> None:
        twice = sum(key in self.blocks for key in span.keys)
        super().copy_in(span, block_ids, generation)
        self.num_twice = getattr(self, "num_twice", 0) + twice
        while self.blocks and len(self.blocks) + self.num_twice > self.max_blocks:
            self.evict()


class KeepsRetiredBlocks(BrokenTier):
    """Keeps its blocks when it is retired."""

    def retire(self) -> None:
        """Does nothing."""


class IndexesUnfinishedSaves(BrokenTier):
    """Indexes saves that began before it was retired."""

    def retire(self) -> None:
        """Drops saved blocks, but not unfinished saves."""
        self.blocks.clear()


class ServesUsedHits(BrokenTier):
    """Loads a hit any number of times."""

    def make_hit(self, keys: Sequence[bytes]) -> _Hit:
        class Reusable(_Hit):
            def use(self) -> None:
                pass

        return Reusable(self, keys)


BROKEN_TIERS: Mapping[type[BrokenTier], tuple[str, ...]] = {
    MixesBlocks: ("sealed_blocks_can_be_loaded", "loads_write_only_the_given_blocks"),
    LosesTokenIds: ("hits_return_the_sealed_token_ids",),
    SkipsGaps: ("a_hit_ends_at_the_first_missing_block",),
    IndexesEarly: ("blocks_are_found_only_after_their_transfer",),
    ReadsLate: ("finished_transfers_access_no_blocks",),
    WritesAgain: ("finished_transfers_access_no_blocks",),
    LoadsEverything: ("loads_write_only_the_given_blocks",),
    EvictsPinned: ("hits_survive_eviction",),
    Grows: ("a_full_tier_evicts",),
    StopsSavingWhenFull: ("a_full_tier_evicts",),
    CountsTwice: ("sealing_twice_uses_no_more_space",),
    KeepsRetiredBlocks: ("retire_drops_every_block",),
    IndexesUnfinishedSaves: ("retire_drops_every_block",),
    ServesUsedHits: ("a_hit_is_used_once",),
}
"""The rules that must catch each broken tier. Every rule has at least one tier."""
