"""Tile sizes and thresholds of the GPU kernels of paged_attention, by GPU family.

All numbers were chosen on one H200 with the heads of Qwen3-4B (32 query heads, 8 key heads, 128
dimensions, bf16). They are used on the other families unchanged.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton

from openinfer_kernels.ops.paged_attention import PagedAttentionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonPrefillSizes:
    """How the Triton kernel of prefills and decode steps cuts up its work.

    Attributes:
        block_m: Rows of a tile at most: queries times query heads that share a key head.
        block_n: Keys that a program attends to at a time.
        num_warps: Warps of a program.
        num_stages: Depth of the software pipeline over keys.
        max_splits: Upper bound of programs that share the keys of one tile.
        min_keys_per_split: Lower bound of the keys of a split.
        target_programs: Keys are split until there are this many programs. 264 fill an H200 twice;
            more splits only add merging.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    max_splits: int
    min_keys_per_split: int
    target_programs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GluonPrefillSizes:
    """When a step takes the Gluon kernel, and the tiles that it is written for.

    Attributes:
        block_m: Rows of a tile: queries times query heads that share a key head.
        block_n: Keys of a tile.
        min_programs: Full tiles times key heads from which on it is faster than the Triton kernel,
            although an H200 runs 132 programs at a time.
    """

    block_m: int
    block_n: int
    min_programs: int


TRITON_PREFILL: dict[str, TritonPrefillSizes] = {
    "default": TritonPrefillSizes(
        block_m=64,
        block_n=64,
        num_warps=4,
        num_stages=2,
        max_splits=32,
        min_keys_per_split=256,
        target_programs=264,
    ),
}

GLUON_PREFILL: dict[str, GluonPrefillSizes] = {
    "hopper": GluonPrefillSizes(block_m=128, block_n=128, min_programs=64)
}

# Bytes of a head at which `block_m` and `block_n` hold; wider heads take smaller tiles. Two tiles
# of keys and values are in flight, and must fit the smallest shared memory (99 KiB).
_HEAD_BYTES = 256


def prefill_constexprs(
    spec: PagedAttentionSpec, sizes: TritonPrefillSizes, block_m: int
) -> dict[str, Any]:
    """Returns the compile-time arguments of the Triton kernel, except IS_SPLIT and PDL."""
    return {
        "NUM_HEADS": spec.num_heads,
        "NUM_KV_HEADS": spec.num_kv_heads,
        "HEAD_DIM": spec.head_dim,
        "BLOCK_SIZE": spec.block_size,
        "BLOCK_M": block_m,
        "BLOCK_N": _narrowed(spec, sizes.block_n),
        "PRECISION": "ieee" if spec.dtype is torch.float32 else "tf32",
    }


def prefill_block_m(spec: PagedAttentionSpec, sizes: TritonPrefillSizes, max_seqlen_q: int) -> int:
    """Returns the rows of a tile: few where no sequence has many queries.

    A tile has at least one query of the whole group, and a matrix product at least 16 rows.
    """
    group_size = spec.num_heads // spec.num_kv_heads
    wanted = int(triton.next_power_of_2(group_size * max_seqlen_q))
    smallest = int(triton.next_power_of_2(group_size))
    return max(16, smallest, min(_narrowed(spec, sizes.block_m), wanted))


def num_splits(sizes: TritonPrefillSizes, num_programs: int, max_seqlen_k: int) -> int:
    """Returns how many programs share the keys of each of `num_programs` tiles."""
    by_length = max_seqlen_k // sizes.min_keys_per_split
    return max(1, min(sizes.max_splits, by_length, sizes.target_programs // num_programs))


def prefill_signature(dtype: str) -> dict[str, str]:
    """Returns the Triton types of the arguments that both prefill kernels have."""
    integers = ("cu_seqlens_q", "seq_lens", "block_table")
    inputs = {"q_ptr": f"*{dtype}", "out_ptr": f"*{dtype}", "q_stride": "i64"}
    inputs |= {f"{name}_ptr": "*i32" for name in integers}
    return inputs | {"table_stride": "i64", "num_seqs": "i32", "scale": "fp32"}


def _narrowed(spec: PagedAttentionSpec, size: int) -> int:
    return size // max(1, spec.head_dim * spec.dtype.itemsize // _HEAD_BYTES)
