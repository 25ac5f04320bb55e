"""Cache groups as data: what one block holds, and for which layers."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Plane:
    """One kind of entry that a token leaves in a group, all layers of the group together.

    Attributes:
        name: "k", "v", "latent", ...
        bytes_per_token: size over all layers and heads of one rank.
    """

    name: str
    bytes_per_token: int

    def __post_init__(self) -> None:
        if self.bytes_per_token < 1:
            raise ValueError(f"plane {self.name!r} has {self.bytes_per_token} bytes a token")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
    """Layers whose cache lives and dies together, in blocks of one size.

    Attributes:
        name: unique within the engine.
        kind: "full": entries of every position are kept as long as the sequence lives.
        tokens_per_block: positions of one block, >= 1.
        planes: what each position stores.
    """

    name: str
    kind: str = "full"
    tokens_per_block: int = 16
    planes: tuple[Plane, ...]

    def __post_init__(self) -> None:
        if self.tokens_per_block < 1:
            raise ValueError(f"group {self.name!r} has {self.tokens_per_block} tokens a block")
        names = [plane.name for plane in self.planes]
        if not names or len(set(names)) != len(names):
            raise ValueError(f"group {self.name!r} needs planes of distinct names, got {names}")

    @property
    def bytes_per_block(self) -> int:
        """Memory of one block on one rank."""
        return self.tokens_per_block * sum(plane.bytes_per_token for plane in self.planes)
