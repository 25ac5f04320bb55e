"""Tile sizes and thresholds of the Triton kernels of fused_attention, by GPU family.

All numbers were measured on one H200 with 8 key heads and lengths of 100 to 16,384 tokens. They are
used on the other families unchanged.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton

from openinfer_kernels.ops.fused_attention import FusedAttentionSpec
from openinfer_kernels.ops.fused_attention._shared_prefixes import UNIT_MEMBERS

MAX_SEQS = 1024
"""Upper bound of sequences in a decode step: a program holds all their lengths in registers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeSizes:
    """How the decode kernel cuts up a step of at most `max_seqs` sequences.

    Attributes:
        max_seqs: Upper bound of the sequences in the step.
        extra_programs: Programs in addition to one for each sequence and key head. Long sequences
            are split among them.
        block_n: Keys attended to at a time, for heads of 256 bytes.
        merged_chunks: Chunks of a sequence that are merged at a time.
        max_registers: Upper bound of registers per thread, so that more programs run at a time;
            None for no limit.
    """

    max_seqs: int
    extra_programs: int
    block_n: int
    merged_chunks: int
    max_registers: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSizes:
    """The sizes of all kernels of fused_attention on one GPU family.

    Attributes:
        decode: Sizes of the decode kernel, by ascending `max_seqs`; the last one is `MAX_SEQS`.
        whole_keys: A sequence with at most this many keys is never split: merging would take longer
            than reading its keys.
        shared_block_m: Rows of a tile over a shared prefix: query heads of several members.
        shared_block_n: Keys of a tile over a shared prefix. Both hold for heads of 256 bytes.
        num_stages: Pipeline depth over keys. With 2, one tile is loaded while another is computed.
            Deeper pipelines leave shared memory for fewer programs.
        merging_registers: Upper bound of registers per thread in a decode kernel that also merges
            a shared prefix. Without the limit it takes more, and fewer programs run at a time.
        prepare_block_m: Tokens of one head that a program of `prepare_kernel` takes.
    """

    decode: tuple[DecodeSizes, ...]
    whole_keys: int
    shared_block_m: int
    shared_block_n: int
    num_stages: int
    merging_registers: int
    prepare_block_m: int

    def decode_sizes(self, num_seqs: int) -> DecodeSizes:
        """Returns the sizes for a decode step of `num_seqs` sequences."""
        return next(sizes for sizes in self.decode if num_seqs <= sizes.max_seqs)

    def decode_registers(self, num_seqs: int, is_shared: bool) -> int | None:
        """Returns the decode kernel's upper bound of registers per thread; None for no limit."""
        return self.merging_registers if is_shared else self.decode_sizes(num_seqs).max_registers


SIZES: dict[str, AttentionSizes] = {
    "default": AttentionSizes(
        decode=(
            DecodeSizes(
                max_seqs=4, extra_programs=264, block_n=128, merged_chunks=8, max_registers=None
            ),
            DecodeSizes(
                max_seqs=8, extra_programs=256, block_n=64, merged_chunks=8, max_registers=None
            ),
            DecodeSizes(
                max_seqs=MAX_SEQS,
                extra_programs=528,
                block_n=64,
                merged_chunks=4,
                max_registers=128,
            ),
        ),
        whole_keys=256,
        shared_block_m=64,
        shared_block_n=64,
        num_stages=2,
        merging_registers=128,
        prepare_block_m=16,
    ),
}

# Sizes that the number of sequences is padded to as a compile-time argument: few, so that few
# kernels are compiled for all batch sizes of a server.
_PADDED_SEQS = (8, 64, 256, MAX_SEQS)
# Bytes of a head at which the tile sizes above hold; wider heads take smaller tiles.
_HEAD_BYTES = 256


def prepare_constexprs(spec: FusedAttentionSpec, sizes: AttentionSizes) -> dict[str, Any]:
    """Returns the compile-time arguments of `prepare_kernel`, except PDL."""
    return {
        **_head_constexprs(spec),
        "BLOCK_M": sizes.prepare_block_m,
        "HAS_NORM": spec.norm_eps is not None,
    }


def decode_constexprs(
    spec: FusedAttentionSpec, sizes: AttentionSizes, num_seqs: int, is_shared: bool
) -> dict[str, Any]:
    """Returns the compile-time arguments of `decode_kernel`, except PDL."""
    of, decode = spec.attention, sizes.decode_sizes(num_seqs)
    group_size = of.num_heads // of.num_kv_heads
    block_n = decode.block_n // _head_units(spec)
    return {
        **_head_constexprs(spec),
        # The group's heads and the new key; a matrix product has at least 16 rows.
        "BLOCK_M": max(16, triton.next_power_of_2(group_size + 1)),
        "GROUP_PAD": triton.next_power_of_2(group_size),
        "HAS_NORM": spec.norm_eps is not None,
        "PRECISION": _precision(spec),
        "IS_SHARED": is_shared,
        "UNIT_MEMBERS": UNIT_MEMBERS,
        "NUM_SEQS_PAD": next(size for size in _PADDED_SEQS if num_seqs <= size),
        "BLOCK_N": block_n,
        "WHOLE_TILES": sizes.whole_keys // block_n,
        "MERGED_CHUNKS": decode.merged_chunks,
        # At one row the next product consists of many small programs, which would fill whatever is
        # free; see `Gemv.is_late` of fused_linear.
        "LAUNCH_LATE": num_seqs == 1,
    }


def shared_constexprs(spec: FusedAttentionSpec, sizes: AttentionSizes) -> dict[str, Any]:
    """Returns the compile-time arguments of `shared_prefix_kernel`, except PDL."""
    of, units = spec.attention, _head_units(spec)
    group_pad = triton.next_power_of_2(of.num_heads // of.num_kv_heads)
    return {
        **_head_constexprs(spec),
        "GROUP_PAD": group_pad,
        "UNIT_MEMBERS": UNIT_MEMBERS,
        "BLOCK_M": min(sizes.shared_block_m // units, UNIT_MEMBERS * group_pad),
        "BLOCK_N": sizes.shared_block_n // units,
        "HAS_NORM": spec.norm_eps is not None,
        "PRECISION": _precision(spec),
    }


def _head_constexprs(spec: FusedAttentionSpec) -> dict[str, int]:
    of = spec.attention
    return {
        "NUM_HEADS": of.num_heads,
        "NUM_KV_HEADS": of.num_kv_heads,
        "HEAD_DIM": of.head_dim,
        "BLOCK_SIZE": of.block_size,
    }


def _head_units(spec: FusedAttentionSpec) -> int:
    return max(1, spec.attention.head_dim * spec.attention.dtype.itemsize // _HEAD_BYTES)


def _precision(spec: FusedAttentionSpec) -> str:
    return "ieee" if spec.attention.dtype is torch.float32 else "tf32"
