"""Block sizes of the Triton kernel of advance_rows, by GPU family; all families have the same."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvanceSizes:
    """How the kernel cuts up the tokens and blocks of a sequence.

    Attributes:
        decode_tokens: Tokens written at a time in a decode step, where a sequence has one.
        prefill_tokens: Tokens written at a time in other steps.
        columns: Columns of the block table copied at a time.
        num_warps: Warps of a program.
    """

    decode_tokens: int
    prefill_tokens: int
    columns: int
    num_warps: int


SIZES: dict[str, AdvanceSizes] = {
    "default": AdvanceSizes(decode_tokens=16, prefill_tokens=1024, columns=1024, num_warps=4),
}
