"""Description of cache groups: kind, block size, planes and resume points."""

from dataclasses import dataclass, field
from fractions import Fraction
from operator import index
from typing import Literal

GroupKind = Literal["full", "window", "state"]
"""full: keeps every position while the sequence lives. window: keeps only the newest positions.
state: one block for each sequence, overwritten by every step, with copies as checkpoints."""

ShardKind = Literal["heads", "replicated", "rank"]


def _check_count(what: str, value: int) -> None:
    try:
        is_count = index(value) >= 1
    except TypeError:
        is_count = False
    if not is_count:
        raise ValueError(f"{what} must be a whole number of at least 1, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """One kind of cache entry of a group, over all its layers.

    Attributes:
        name: "k", "v", "latent", ...
        bytes_per_token: size of one entry over all layers and heads of one rank. An entry belongs
            to one token, or to several tokens if `entries_per_token` is below 1. In a state group,
            the entry is the whole state.
    """

    name: str
    bytes_per_token: int

    def __post_init__(self) -> None:
        _check_count(f"plane {self.name!r}: bytes_per_token", self.bytes_per_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Resume points of groups that do not keep every position.

    Positions are rounded down to boundaries of the blocks of all groups. The last boundary of every
    prompt is always a resume point.

    Attributes:
        at_hints: whether the ends of messages that a request gives as hints are resume points.
        every_tokens: distance of further resume points in prompt and output; None for none.
        output_tokens: distance at which the state of growing output is copied; the newest copy is
            kept when the sequence ends. None: output has no resume points.
    """

    at_hints: bool = True
    every_tokens: int | None = None
    output_tokens: int | None = 64

    def __post_init__(self) -> None:
        for name in ("every_tokens", "output_tokens"):
            value = getattr(self, name)
            if value is not None:
                _check_count(name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers that share one block size and one rule for keeping blocks.

    Attributes:
        name: unique within the engine.
        kind: "full", "window" or "state".
        tokens_per_block: positions in one block, at least 1. In a state group a block holds the
            whole state, and checkpoints lie at multiples of this number.
        planes: the entries stored in a block.
        entries_per_token: 1, or less if several tokens share one entry, as in compressed attention.
            A block holds a whole number of entries.
        window: for "window" groups: a token sees itself and the `window - 1` tokens before it.
        shard: division over tensor-parallel ranks: by "heads", "replicated", or different blocks on
            each "rank". Sizes are always those of one rank.
        resume: resume points; without effect on "full" groups.
    """

    name: str
    kind: GroupKind = "full"
    tokens_per_block: int = 16
    planes: tuple[Plane, ...]
    entries_per_token: Fraction = Fraction(1)
    window: int | None = None
    shard: ShardKind = "heads"
    resume: Resume = field(default_factory=Resume)

    def __post_init__(self) -> None:
        if self.kind not in ("full", "window", "state"):
            raise ValueError(f"group {self.name!r} has an unknown kind: {self.kind!r}")
        if self.shard not in ("heads", "replicated", "rank"):
            raise ValueError(f"group {self.name!r} has an unknown shard: {self.shard!r}")
        _check_count(f"group {self.name!r}: tokens_per_block", self.tokens_per_block)
        names = [plane.name for plane in self.planes]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"group {self.name!r} needs planes of distinct names, got {names}")
        if (self.kind == "window") != (self.window is not None):
            raise ValueError(
                f"group {self.name!r} of kind {self.kind!r} has window={self.window}: "
                "a window group needs a window, and no other kind may have one"
            )
        if self.window is not None:
            _check_count(f"group {self.name!r}: window", self.window)
        if not 0 < self.entries_per_token <= 1:
            raise ValueError(
                f"group {self.name!r}: entries_per_token must be in (0, 1], not "
                f"{self.entries_per_token}"
            )
        entries = self.tokens_per_block * self.entries_per_token
        if self.kind != "state" and (entries < 1 or entries.denominator != 1):
            raise ValueError(
                f"group {self.name!r} has {entries} entries per block: tokens_per_block must be a "
                f"multiple of the {1 / self.entries_per_token} tokens that share an entry"
            )

    @property
    def entries_per_block(self) -> int:
        """Entries in one block; 1 in a state group."""
        if self.kind == "state":
            return 1
        return int(self.tokens_per_block * self.entries_per_token)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block on one rank, without padding."""
        return self.entries_per_block * sum(plane.bytes_per_token for plane in self.planes)
