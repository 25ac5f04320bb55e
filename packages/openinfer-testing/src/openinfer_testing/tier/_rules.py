"""Every rule a `CacheTier` keeps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from openinfer_kv_cache import LeaseUsed
from openinfer_kv_cache.tiers import TierHit
from openinfer_testing.tier._harness import TierFactory, TierSession

_MAX_BLOCKS = 16


@dataclass(frozen=True, slots=True)
class TierRule:
    """Something every tier does.

    Attributes:
        body: tries it in a session; raises AssertionError if the tier does not.
    """

    body: Callable[[TierSession], None]

    @property
    def name(self) -> str:
        """The rule in a few words."""
        return self.body.__name__

    def check(self, factory: TierFactory) -> None:
        """Hold one tier to the rule.

        Raises:
            AssertionError: the tier breaks it.
        """
        self.body(TierSession(factory, _MAX_BLOCKS))


def what_is_sealed_comes_back(session: TierSession) -> None:
    """Every byte of every block, into whichever device blocks are asked for."""
    session.save(1, 4)
    session.save(2, 3)
    for name, num, target in ((1, 4, [9, 20, 8, 30]), (2, 3, [7, 5, 6])):
        hit = session.hit(name, num)
        assert hit.num_blocks == num
        session.load(hit, np.array(target, np.int32))
        for index, block in enumerate(target):
            assert session.device.blocks[block] == session.content(name, index), (
                f"block {index} came back with other bytes"
            )


def token_ids_are_those_sealed(session: TierSession) -> None:
    """A hit tells the token ids of its blocks, as they were sealed."""
    session.save(1, 4)
    hit = session.hit(1, 6)
    assert hit.token_ids == session.span(1, 4).token_ids, "other token ids than were sealed"
    hit.close()


def a_gap_ends_a_hit(session: TierSession) -> None:
    """A hit has no holes, begins where the span does, and goes as far as it can."""
    session.save(1, 2)
    session.save(1, 6, start=3)
    assert session.count(1, 6) == 2, "a hit goes to the first block that is missing"
    assert session.count(1, 6, start=2) == 0, "a span whose first block is missing is no hit"
    assert session.count(1, 6, start=3) == 3, "a span may begin within a chain"
    assert session.count(2, 3) == 0, "another chain is found"


def nothing_is_found_before_it_has_landed(session: TierSession) -> None:
    """A block is found once its transfer is over, not before."""
    transfer = session.seal(1, 3)
    assert session.count(1, 3) in (0, 3)
    if session.count(1, 3):
        session.scribble(range(3))
        hit = session.hit(1, 3)
        session.load(hit, np.arange(10, 13, dtype=np.int32))
        assert session.device.blocks[10:13] == [session.content(1, i) for i in range(3)], (
            "found before its bytes had been read"
        )
        return
    session.finish(transfer)
    assert session.count(1, 3) == 3


def a_finished_transfer_touches_nothing(session: TierSession) -> None:
    """The source may be reused as soon as a save is over, the target of a load likewise."""
    session.save(1, 3)
    first = np.array([10, 11, 12], np.int32)
    session.load(session.hit(1, 3), first)
    session.device.written.clear()
    session.load(session.hit(1, 3), np.array([20, 21, 22], np.int32))
    session.save(2, 3)
    assert session.count(1, 3) == 3
    assert session.device.written == {20, 21, 22}, "blocks of a transfer that was over are written"
    assert session.device.blocks[20:23] == [session.content(1, i) for i in range(3)], (
        "a save read its source after it was over"
    )


def a_load_writes_what_it_was_given(session: TierSession) -> None:
    """As many blocks as there are ids, from the first on, and no others."""
    session.save(1, 4)
    session.device.written.clear()
    session.load(session.hit(1, 4), np.array([15, 14], np.int32))
    assert session.device.written == {14, 15}
    assert session.device.blocks[15] == session.content(1, 0)
    assert session.device.blocks[14] == session.content(1, 1)


def a_hit_outlives_pressure(session: TierSession) -> None:
    """What was resolved can be loaded, whatever is sealed meanwhile."""
    session.save(1, 4)
    hit = session.hit(1, 4)
    for name in range(2, 12):
        session.save(name, 4)
    session.load(hit, np.arange(20, 24, dtype=np.int32))
    assert session.device.blocks[20:24] == [session.content(1, i) for i in range(4)], (
        "a pinned block was evicted"
    )


def a_full_tier_keeps_working(session: TierSession) -> None:
    """It keeps no more than it has room for, and what it keeps is right."""
    for name in range(1, 12):
        session.save(name, 4)
    found = {name: session.count(name, 4) for name in range(1, 12)}
    assert 0 < sum(found.values()) <= session.max_blocks, f"{found} of {session.max_blocks}"
    for name, num in found.items():
        if num:
            session.load(session.hit(name, num), np.arange(20, 20 + num, dtype=np.int32))
            contents = [session.content(name, i) for i in range(num)]
            assert session.device.blocks[20 : 20 + num] == contents


def sealing_twice_changes_nothing(session: TierSession) -> None:
    """Equal keys are equal blocks: saved once, whoever comes first."""
    for _ in range(5):
        session.save(1, session.max_blocks // 2)
    session.save(2, session.max_blocks // 2)
    assert session.count(1, session.max_blocks // 2) == session.max_blocks // 2, (
        "copies of one block take room"
    )


def retire_forgets(session: TierSession) -> None:
    """Also what is on its way; hits made before can still be loaded; life goes on."""
    session.save(1, 3)
    hit = session.hit(1, 3)
    late = session.seal(2, 3)
    session.tier.retire()
    assert session.count(1, 3) == 0, "a retired block is found"
    session.finish(late)
    assert session.count(2, 3) == 0, "a block sealed before is found after"
    session.load(hit, np.arange(20, 23, dtype=np.int32))
    assert session.device.blocks[20] == session.content(1, 0)
    session.save(2, 3)
    assert session.count(2, 3) == 3


def a_hit_is_used_once(session: TierSession) -> None:
    """Loaded or closed, and then it raises."""
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
            raise AssertionError("a hit that was used can be used again")


def _load_again(hit: TierHit) -> None:
    hit.load(np.arange(20, 23, dtype=np.int32))


TIER_RULES: Mapping[str, TierRule] = {
    body.__name__: TierRule(body)
    for body in (
        what_is_sealed_comes_back,
        token_ids_are_those_sealed,
        a_gap_ends_a_hit,
        nothing_is_found_before_it_has_landed,
        a_finished_transfer_touches_nothing,
        a_load_writes_what_it_was_given,
        a_hit_outlives_pressure,
        a_full_tier_keeps_working,
        sealing_twice_changes_nothing,
        retire_forgets,
        a_hit_is_used_once,
    )
}
"""Every rule by name."""
