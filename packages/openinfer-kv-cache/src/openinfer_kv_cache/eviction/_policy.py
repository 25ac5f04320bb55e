"""What a policy of eviction is asked and told."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from openinfer_kv_cache.eviction._lru import BlockIds


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUse:
    """Who uses blocks, and what they say of them.

    Attributes:
        priority: of the request; lower matters more.
        session_id: of the conversation; empty: of none.
        hint: "pin": will be wanted again; "demote": will not.
    """

    priority: int = 0
    session_id: str = ""
    hint: Literal["", "pin", "demote"] = ""


ANONYMOUS = CacheUse()
"""Nothing is said."""


class Standing(NamedTuple):
    """A block's place in the order of eviction.

    Attributes:
        score: the lowest goes first; all scores of a policy have the same length.
        until: time of the policy's clock from which on the score may be another.
    """

    score: tuple[float, ...]
    until: float = float("inf")


class EvictionPolicy(Protocol):
    """Says which cached block that nobody holds is given up next.

    It can be unwise and not wrong: it is asked about leaves only, blocks that nobody holds and
    that no cached block continues, and what it answers is an order among them. Scores given at
    different times are compared with each other, so one that fades with time must be kept in a
    form that does not, such as the logarithm of a decaying sum; see `FrequencyEviction`.

    One policy serves one group of one cache, from the step thread. The arrays are read-only.

    Attributes:
        clock: seconds, as `Standing.until` has them.
    """

    clock: Callable[[], float]

    def attach(self, num_blocks: int, /) -> None:
        """Ids will be below `num_blocks`. Called once, first."""

    def stored(self, block_ids: BlockIds, /) -> None:
        """These blocks hold new content: whatever was known of them is void."""

    def used(self, block_ids: BlockIds, use: CacheUse, /) -> None:
        """A sequence that computed or hit these blocks, in order, lets go of them."""

    def standing(self, block_id: int, /) -> Standing:
        """Where a leaf stands."""
