"""How the Triton kernels of fused_attention cut up their work."""

from typing import Any, NamedTuple

import torch
import triton

from openinfer_kernels.ops.fused_attention import FusedAttentionSpec
from openinfer_kernels.ops.fused_attention._shared_prefixes import UNIT_MEMBERS

MAX_SEQS = 1024
_PADDED_SEQS = (8, 64, 256, MAX_SEQS)


class Load(NamedTuple):
    """How a decode step of up to so many sequences is cut up.

    Attributes:
        max_seqs: Sequences at most.
        extra_programs: Beyond one a sequence and key head: what long sequences are split into.
        tile_keys: Keys attended to at a time, of 128 dimensions in 16 bits.
        merged_chunks: Chunks merged at a time.
        registers: Of a thread at most, so that enough programs run at a time; None for any.
    """

    max_seqs: int
    extra_programs: int
    tile_keys: int
    merged_chunks: int
    registers: int | None


# As found on an H200, with 8 key heads and lengths of 100 to 16,384.
LOADS = (
    Load(4, 264, 128, 8, None),
    Load(8, 256, 64, 8, None),
    Load(MAX_SEQS, 528, 64, 4, 128),
)
# Keys of a sequence that one program attends to alone: merging takes longer than reading.
WHOLE_KEYS = 256
# Over shared prefixes, likewise: rows of a product, of 128 dimensions in 16 bits, that is query
# heads of so many members; keys of a tile.
_SHARED_ROWS = 64
_SHARED_TILE = 64
# One tile of keys and values on its way beside the one attended to: the blocks of a tile are known
# before its turn. What more needs leaves room for fewer programs at a time.
NUM_STAGES = 2
# Registers of a thread that also merges; else it takes more, and fewer programs run at a time.
_MERGING_REGISTERS = 128
# Tokens of one head that a program of a prefill prepares.
PREPARED_TOKENS = 16


def prepare_constexprs(spec: FusedAttentionSpec) -> dict[str, Any]:
    """Compile-time choices of the kernel before a prefill, but PDL."""
    of = spec.attention
    return {
        "NUM_HEADS": of.num_heads,
        "NUM_KV_HEADS": of.num_kv_heads,
        "HEAD_DIM": of.head_dim,
        "BLOCK_SIZE": of.block_size,
        "TOKENS": PREPARED_TOKENS,
        "NORM": spec.norm_eps is not None,
    }


def load_of(num_seqs: int) -> Load:
    """The first load that takes so many sequences."""
    return next(load for load in LOADS if num_seqs <= load.max_seqs)


def by_load(spec: FusedAttentionSpec, num_seqs: int) -> dict[str, Any]:
    """Compile-time choices that follow from the number of sequences."""
    of, load = spec.attention, load_of(num_seqs)
    tile = load.tile_keys // max(1, of.head_dim * of.dtype.itemsize // 256)
    return {
        # Few sizes, so that few kernels are compiled for all the batches of a server.
        "NUM_SEQS_PAD": next(size for size in _PADDED_SEQS if num_seqs <= size),
        "TILE": tile,
        "WHOLE": WHOLE_KEYS // tile,
        "CHUNKS": load.merged_chunks,
        # One row's products are many small programs, which fill whatever is free; see `Tile`.
        "LATE": num_seqs == 1,
    }


def constexprs(spec: FusedAttentionSpec) -> dict[str, Any]:
    """Compile-time choices, but PDL and what follows from the number of sequences."""
    of = spec.attention
    group = of.num_heads // of.num_kv_heads
    return {
        "NUM_HEADS": of.num_heads,
        "NUM_KV_HEADS": of.num_kv_heads,
        "HEAD_DIM": of.head_dim,
        "BLOCK_SIZE": of.block_size,
        # The group's heads and the new key; a matrix product has at least 16 rows.
        "ROWS": max(16, triton.next_power_of_2(group + 1)),
        "GROUP_PAD": triton.next_power_of_2(group),
        "NORM": spec.norm_eps is not None,
        "PRECISION": "ieee" if of.dtype is torch.float32 else "tf32",
    }


def shared_constexprs(spec: FusedAttentionSpec) -> dict[str, Any]:
    """Compile-time choices of the kernel over shared prefixes, but PDL."""
    of = spec.attention
    group_pad = triton.next_power_of_2(of.num_heads // of.num_kv_heads)
    wide = max(1, of.head_dim * of.dtype.itemsize // 256)
    return {
        "NUM_HEADS": of.num_heads,
        "NUM_KV_HEADS": of.num_kv_heads,
        "HEAD_DIM": of.head_dim,
        "BLOCK_SIZE": of.block_size,
        "GROUP_PAD": group_pad,
        "MEMBERS": UNIT_MEMBERS,
        "ROWS": min(_SHARED_ROWS // wide, UNIT_MEMBERS * group_pad),
        "TILE": _SHARED_TILE // wide,
        "NORM": spec.norm_eps is not None,
        "PRECISION": "ieee" if of.dtype is torch.float32 else "tf32",
    }


def sharing(is_shared: bool) -> dict[str, Any]:
    """Compile-time choices of a decode step that may have shared prefixes, or has none."""
    return {"SHARED": is_shared, "MEMBERS": UNIT_MEMBERS}


def registers_of(num_seqs: int, is_shared: bool) -> int | None:
    """Registers of a thread at most, of a decode step; None for any."""
    return _MERGING_REGISTERS if is_shared else load_of(num_seqs).registers
