"""Rules of `CacheTier`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from openinfer_kv_cache import LeaseUsed
from openinfer_kv_cache.tiers import TierHit
from openinfer_testing.tier._harness import TierFactory, TierSession

_MAX_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class TierRule:
    """Requirement that every `CacheTier` must satisfy.

    Attributes:
        body: Checks the requirement in a session; raises AssertionError if the tier violates it.
    """

    body: Callable[[TierSession], None]

    @property
    def name(self) -> str:
        """Name of the rule, which is the name of its function."""
        return self.body.__name__

    def check(self, factory: TierFactory) -> None:
        """Checks one tier.

        Raises:
            AssertionError: The tier violates the rule.
        """
        self.body(TierSession(factory, _MAX_BLOCKS))


def sealed_blocks_can_be_loaded(session: TierSession) -> None:
    """Loading a hit must write the sealed bytes into the given device blocks, in order."""
    session.save(1, 4)
    session.save(2, 3)
    for name, num, target in ((1, 4, [9, 20, 8, 30]), (2, 3, [7, 5, 6])):
        hit = session.hit(name, num)
        assert hit.num_blocks == num
        session.load(hit, np.array(target, np.int32))
        for index, block in enumerate(target):
            assert session.device.blocks[block] == session.content(name, index), (
                f"block {index} was loaded with other bytes than were sealed"
            )


def hits_return_the_sealed_token_ids(session: TierSession) -> None:
    """`hit.token_ids` must be the token ids with which its blocks were sealed."""
    session.save(1, 4)
    hit = session.hit(1, 6)
    assert hit.token_ids == session.span(1, 4).token_ids, (
        "a hit must return the token ids that were sealed"
    )
    hit.close()


def a_hit_ends_at_the_first_missing_block(session: TierSession) -> None:
    """A hit must begin at the first block of the span and end before the first missing block."""
    session.save(1, 2)
    session.save(1, 6, start=3)
    assert session.count(1, 6) == 2, "a hit must end before the first missing block"
    assert session.count(1, 6, start=2) == 0, (
        "a span whose first block is missing must not be found"
    )
    assert session.count(1, 6, start=3) == 3, "a span may begin within a chain"
    assert session.count(2, 3) == 0, "a chain that was never saved must not be found"


def blocks_are_found_only_after_their_transfer(session: TierSession) -> None:
    """A tier may find a block only once its bytes have been read from the device."""
    transfer = session.seal(1, 3)
    assert session.count(1, 3) in (0, 3)
    if session.count(1, 3):
        session.scribble(range(3))
        hit = session.hit(1, 3)
        session.load(hit, np.arange(10, 13, dtype=np.int32))
        assert session.device.blocks[10:13] == [session.content(1, i) for i in range(3)], (
            "a block was found before its bytes had been read"
        )
        return
    session.finish(transfer)
    assert session.count(1, 3) == 3


def finished_transfers_access_no_blocks(session: TierSession) -> None:
    """After a transfer has completed, the tier must not read its source or write its target."""
    session.save(1, 3)
    first = np.array([10, 11, 12], np.int32)
    session.load(session.hit(1, 3), first)
    session.device.written.clear()
    session.load(session.hit(1, 3), np.array([20, 21, 22], np.int32))
    session.save(2, 3)
    assert session.count(1, 3) == 3
    assert session.device.written == {20, 21, 22}, (
        "a completed load must not write its blocks again"
    )
    assert session.device.blocks[20:23] == [session.content(1, i) for i in range(3)], (
        "a completed save must not read its source again"
    )


def loads_write_only_the_given_blocks(session: TierSession) -> None:
    """`load` must write one block for each given id, in order, and no other."""
    session.save(1, 4)
    session.device.written.clear()
    session.load(session.hit(1, 4), np.array([15, 14], np.int32))
    assert session.device.written == {14, 15}
    assert session.device.blocks[15] == session.content(1, 0)
    assert session.device.blocks[14] == session.content(1, 1)


def hits_survive_eviction(session: TierSession) -> None:
    """A hit must stay loadable while other blocks are sealed: its blocks are pinned."""
    session.save(1, 4)
    hit = session.hit(1, 4)
    for name in range(2, 12):
        session.save(name, 4)
    session.load(hit, np.arange(20, 24, dtype=np.int32))
    assert session.device.blocks[20:24] == [session.content(1, i) for i in range(4)], (
        "a block of an open hit was evicted"
    )


def a_full_tier_evicts(session: TierSession) -> None:
    """A full tier must evict blocks to save new ones. What it finds must have the right bytes."""
    for name in range(1, 12):
        session.save(name, 4)
    found = {name: session.count(name, 4) for name in range(1, 12)}
    assert 0 < sum(found.values()) <= session.max_blocks, f"{found} of {session.max_blocks}"
    for name, num in found.items():
        if num:
            session.load(session.hit(name, num), np.arange(20, 20 + num, dtype=np.int32))
            contents = [session.content(name, i) for i in range(num)]
            assert session.device.blocks[20 : 20 + num] == contents


def sealing_twice_uses_no_more_space(session: TierSession) -> None:
    """Sealing blocks that the tier already holds must use no more space."""
    for _ in range(5):
        session.save(1, session.max_blocks // 2)
    session.save(2, session.max_blocks // 2)
    assert session.count(1, session.max_blocks // 2) == session.max_blocks // 2, (
        "a block that was sealed again must not take space twice"
    )


def retire_drops_every_block(session: TierSession) -> None:
    """`retire` drops saved blocks and unfinished saves.

    Open hits stay loadable, later saves work.
    """
    session.save(1, 3)
    hit = session.hit(1, 3)
    late = session.seal(2, 3)
    session.tier.retire()
    assert session.count(1, 3) == 0, "a block must not be found after retire"
    session.finish(late)
    assert session.count(2, 3) == 0, "a save that began before retire must not be found after it"
    session.load(hit, np.arange(20, 23, dtype=np.int32))
    assert session.device.blocks[20] == session.content(1, 0)
    session.save(2, 3)
    assert session.count(2, 3) == 3


def a_hit_is_used_once(session: TierSession) -> None:
    """After `load` or `close` a hit must raise `LeaseUsed`."""
    session.save(1, 3)
    loaded, closed = session.hit(1, 3), session.hit(1, 3)
    session.load(loaded, np.arange(20, 23, dtype=np.int32))
    closed.close()
    for used in (loaded, closed):
        for use in (used.close, lambda used=used: _load_again(used)):
            try:
                use()
            except LeaseUsed:
                continue
            raise AssertionError("using a hit twice must raise LeaseUsed")


def _load_again(hit: TierHit) -> None:
    hit.load(np.arange(20, 23, dtype=np.int32))


TIER_RULES: Mapping[str, TierRule] = {
    body.__name__: TierRule(body)
    for body in (
        sealed_blocks_can_be_loaded,
        hits_return_the_sealed_token_ids,
        a_hit_ends_at_the_first_missing_block,
        blocks_are_found_only_after_their_transfer,
        finished_transfers_access_no_blocks,
        loads_write_only_the_given_blocks,
        hits_survive_eviction,
        a_full_tier_evicts,
        sealing_twice_uses_no_more_space,
        retire_drops_every_block,
        a_hit_is_used_once,
    )
}
"""Every rule, by name."""
