"""Tiers that break one rule each, and the rules that catch them."""

from collections.abc import Callable, Mapping, Sequence

from openinfer_kv_cache import BlockIds, LeaseUsed
from openinfer_kv_cache.tiers import BlockMemory, BlockSpan

_Copy = Callable[[], None]


class _Transfer:
    """Copies at its second poll, as late as it may."""

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
    """A tier without a fault, which the broken ones change in one place."""

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
        """Leading blocks that are here."""
        num = 0
        while num < len(keys) and keys[num] in self.blocks:
            num += 1
        return num

    def make_hit(self, keys: Sequence[bytes]) -> _Hit:
        """A hit of these blocks."""
        return _Hit(self, keys)

    def copy_in(self, span: BlockSpan, block_ids: Sequence[int], generation: int) -> None:
        """The end of a save."""
        if generation != self.generation:
            return
        size = span.bytes_per_block
        for index, (key, block) in enumerate(zip(span.keys, block_ids, strict=True)):
            while len(self.blocks) >= self.max_blocks and key not in self.blocks:
                self.evict()
            token_ids = span.token_ids[index * size : (index + 1) * size]
            self.blocks.setdefault(key, (token_ids, self.memory.read(block)))

    def evict(self) -> None:
        """Forget the oldest block."""
        del self.blocks[next(iter(self.blocks))]

    def copy_out(self, hit: _Hit, block_ids: Sequence[int]) -> None:
        """The end of a load."""
        for block, (_, content) in zip(block_ids, hit.found, strict=False):
            self.memory.write(block, content)


class MixesBlocks(BrokenTier):
    """Loads blocks in another order."""

    def copy_out(self, hit: _Hit, block_ids: Sequence[int]) -> None:
        super().copy_out(hit, sorted(block_ids))


class LosesTokenIds(BrokenTier):
    """Answers with the token ids that were asked for, not with those sealed."""

    def resolve(self, span: BlockSpan, /) -> _Hit | None:
        hit = super().resolve(span)
        if hit is not None:
            hit.found[-1] = (span.token_ids[-span.bytes_per_block :], hit.found[-1][1])
        return hit


class SkipsGaps(BrokenTier):
    """Counts blocks wherever they are."""

    def resolve(self, span: BlockSpan, /) -> _Hit | None:
        keys = [key for key in span.keys if key in self.blocks]
        return self.make_hit(keys) if keys else None


class IndexesEarly(BrokenTier):
    """Finds blocks whose bytes are not there yet."""

    def seal(self, span: BlockSpan, block_ids: BlockIds, /) -> _Transfer:
        for key in span.keys:
            self.blocks.setdefault(key, (b"", b""))
        return super().seal(span, block_ids)


class ReadsLate(BrokenTier):
    """Reads the source when a block is first wanted."""

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
    """Repeats the load before with every load."""

    def copy_out(self, hit: _Hit, block_ids: Sequence[int]) -> None:
        before = getattr(self, "before", None)
        if before is not None:
            super().copy_out(*before)
        super().copy_out(hit, block_ids)
        self.before = (hit, block_ids)


class LoadsEverything(BrokenTier):
    """Writes all blocks of a hit, in a row from the first that was given."""

    def copy_out(self, hit: _Hit, block_ids: Sequence[int]) -> None:
        first = min(block_ids)
        super().copy_out(hit, [*block_ids, *range(first, first + 8)][: hit.num_blocks])


class EvictsPinned(BrokenTier):
    """A hit is only a list of keys."""

    def copy_out(self, hit: _Hit, block_ids: Sequence[int]) -> None:
        hit.found = [self.blocks.get(key, (b"", b"")) for key in hit.keys]
        super().copy_out(hit, block_ids)


class Grows(BrokenTier):
    """Evicts nothing."""

    def __init__(self, memory: BlockMemory, max_blocks: int) -> None:
        super().__init__(memory, 10**9)


class StopsWhenFull(BrokenTier):
    """Forgets everything when it is full and takes nothing any more."""

    def evict(self) -> None:
        self.generation += 1
        self.blocks = dict.fromkeys(map(bytes, range(1, self.max_blocks)), (b"", b""))


class CountsTwice(BrokenTier):
    """Makes room for a block that it has."""

    def copy_in(self, span: BlockSpan, block_ids: Sequence[int], generation: int) -> None:
        twice = sum(key in self.blocks for key in span.keys)
        super().copy_in(span, block_ids, generation)
        self.num_twice = getattr(self, "num_twice", 0) + twice
        while self.blocks and len(self.blocks) + self.num_twice > self.max_blocks:
            self.evict()


class RemembersRetired(BrokenTier):
    """Retires nothing."""

    def retire(self) -> None:
        """Nothing."""


class RetiresTooLittle(BrokenTier):
    """Lets saves finish that began before."""

    def retire(self) -> None:
        """Forget what is here."""
        self.blocks.clear()


class ServesUsedHits(BrokenTier):
    """Loads a hit as often as it is asked to."""

    def make_hit(self, keys: Sequence[bytes]) -> _Hit:
        class Reusable(_Hit):
            def use(self) -> None:
                pass

        return Reusable(self, keys)


BROKEN_TIERS: Mapping[type[BrokenTier], tuple[str, ...]] = {
    MixesBlocks: ("what_is_sealed_comes_back", "a_load_writes_what_it_was_given"),
    LosesTokenIds: ("token_ids_are_those_sealed",),
    SkipsGaps: ("a_gap_ends_a_hit",),
    IndexesEarly: ("nothing_is_found_before_it_has_landed",),
    ReadsLate: ("a_finished_transfer_touches_nothing",),
    WritesAgain: ("a_finished_transfer_touches_nothing",),
    LoadsEverything: ("a_load_writes_what_it_was_given",),
    EvictsPinned: ("a_hit_outlives_pressure",),
    Grows: ("a_full_tier_keeps_working",),
    StopsWhenFull: ("a_full_tier_keeps_working",),
    CountsTwice: ("sealing_twice_changes_nothing",),
    RemembersRetired: ("retire_forgets",),
    RetiresTooLittle: ("retire_forgets",),
    ServesUsedHits: ("a_hit_is_used_once",),
}
"""Each broken tier and the rules that catch it. Every rule has at least one."""
