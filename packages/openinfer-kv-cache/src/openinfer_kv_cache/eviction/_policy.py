"""The `EvictionPolicy` Protocol: what the cache asks a policy and what it reports to it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from openinfer_kv_cache.eviction._lru import BlockIds


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """One request's use of blocks, as reported to a policy.

    Attributes:
        priority: the request's priority; a lower number is more important.
        session_id: the conversation of the request; empty if it has none.
        hint: "pin" if the request expects the blocks to be used again, "demote" if it does not.
    """

    priority: int = 0
    session_id: str = ""
    hint: Literal["", "pin", "demote"] = ""


ANONYMOUS = CacheUse()
"""A use without priority, session or hint."""


class EvictionRank(NamedTuple):
    """A block's position in the eviction order.

    Attributes:
        score: the block with the lowest score is evicted first. All scores of a policy have the
            same length.
        until: time on the policy's clock at which the score expires and the policy is asked again.
    """

    score: tuple[float, ...]
    until: float = float("inf")


class EvictionPolicy(Protocol):
    """Decides which evictable block is evicted next.

    A bad policy costs hits, never correctness. It ranks leaves only: blocks that no sequence holds
    and that have no cached child. Scores given at different times are compared with one another, so
    a decaying score must be given in a form that does not decay, such as the logarithm of a
    decaying sum; see `FrequencyEviction`.

    One policy object serves one group of one cache. All calls come from the step thread; the arrays
    are read-only.

    Attributes:
        clock: returns seconds, the time scale of `EvictionRank.until`.
    """

    clock: Callable[[], float]

    def attach(self, num_blocks: int, /) -> None:
        """Announces that block ids are below `num_blocks`. Called once, before any other method."""

    def stored(self, block_ids: BlockIds, /) -> None:
        """Reports that these blocks hold new content: forget what was known about them."""

    def used(self, block_ids: BlockIds, use: CacheUse, /) -> None:
        """Reports that a sequence which computed or hit these blocks, in order, releases them."""

    def rank(self, block_id: int, /) -> EvictionRank:
        """Returns the rank of a leaf."""
