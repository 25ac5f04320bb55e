"""Block sizes of the Triton kernel of score_tokens, by GPU family; all families have the same."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSizes:
    """How the kernel cuts up a vocabulary.

    Attributes:
        block: Ids of a program.
        num_warps: Warps of a program.
        max_top: Upper bound of the most likely tokens that the kernel finds. For more, torch's
            operators run; the HTTP API allows fewer.
        read_ids: Given ids that are scored at a time.
    """

    block: int
    num_warps: int
    max_top: int
    read_ids: int


SIZES: dict[str, ScoreSizes] = {
    "default": ScoreSizes(block=4096, num_warps=8, max_top=32, read_ids=128),
}
