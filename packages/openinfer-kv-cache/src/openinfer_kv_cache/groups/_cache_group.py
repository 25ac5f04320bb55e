"""Cache groups as data: what one block holds, for which layers, and for how long it is kept."""

from dataclasses import dataclass, field
from fractions import Fraction
from operator import index
from typing import Literal

GroupKind = Literal["full", "window", "state"]
"""full: every position, as long as the sequence lives. window: only the newest positions.
state: one row a sequence that every step overwrites, with copies of it as checkpoints."""

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
    """One kind of entry that tokens leave in a group, all layers of the group together.

    Attributes:
        name: "k", "v", "latent", ...
        bytes_per_token: size of one entry over all layers and heads of one rank. An entry is what
            one token leaves; where a group has fewer `entries_per_token`, what several tokens
            leave together; in a state group, the whole state.
    """

    name: str
    bytes_per_token: int

    def __post_init__(self) -> None:
        _check_count(f"plane {self.name!r}: bytes_per_token", self.bytes_per_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume:
    """Where sequences can be taken up again, in groups that do not keep every position.

    Positions are rounded down to block boundaries of all groups; the last boundary of every known
    prompt is always one of them.

    Attributes:
        at_hints: where the request says that messages end.
        every_tokens: besides, every so many positions, in prompt and output; None: nowhere.
        output_tokens: a state is copied every so many positions of growing output, and the newest
            copy is kept when the sequence ends; None: the end of output is no resume point.
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
    """Layers whose cache lives and dies together, in blocks of one size.

    Attributes:
        name: unique within the engine.
        kind: "full", "window" or "state".
        tokens_per_block: positions of one block, >= 1. A state's block holds the whole state; its
            checkpoints stand on multiples of this.
        planes: what each entry stores.
        entries_per_token: 1, or less where several tokens leave one entry together, as in
            compressed attention; a block holds a whole number of entries.
        window: of a "window" group: a token sees itself and the `window - 1` tokens before it.
        shard: how tensor parallel ranks divide it: each its "heads", all of it "replicated", or
            other blocks on each "rank". Sizes here are those of one rank in any case.
        resume: where sequences can be taken up again; without effect on "full" groups.
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
            raise ValueError(f"group {self.name!r} is of no known kind: {self.kind!r}")
        if self.shard not in ("heads", "replicated", "rank"):
            raise ValueError(f"group {self.name!r} has no known shard: {self.shard!r}")
        _check_count(f"group {self.name!r}: tokens_per_block", self.tokens_per_block)
        names = [plane.name for plane in self.planes]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"group {self.name!r} needs planes of distinct names, got {names}")
        if (self.kind == "window") != (self.window is not None):
            raise ValueError(f"group {self.name!r} of kind {self.kind!r} has window {self.window}")
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
                f"group {self.name!r} has {entries} entries a block: tokens_per_block must be a "
                f"multiple of the {1 / self.entries_per_token} tokens that share an entry"
            )

    @property
    def entries_per_block(self) -> int:
        """Entries of one block; one in a state group."""
        if self.kind == "state":
            return 1
        return int(self.tokens_per_block * self.entries_per_token)

    @property
    def bytes_per_block(self) -> int:
        """Memory of one block on one rank, without padding."""
        return self.entries_per_block * sum(plane.bytes_per_token for plane in self.planes)
