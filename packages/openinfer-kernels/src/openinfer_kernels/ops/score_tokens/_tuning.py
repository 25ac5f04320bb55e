"""Block sizes of the Triton kernel of score_tokens, by GPU family: one for all families."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSizes:
    """How the kernel cuts up a vocabulary.

    Attributes:
        block: Ids of a program.
        num_warps: Warps of a program.
        max_top: Most likely tokens that the kernel finds at most. More are left to torch's
            operators; the HTTP API allows fewer.
        read_ids: Given ids that are scored at a time.
    """

    block: int
    num_warps: int
    max_top: int
    read_ids: int


SIZES: dict[str, ScoreSizes] = {
    "default": ScoreSizes(block=4096, num_warps=8, max_top=32, read_ids=128),
}
