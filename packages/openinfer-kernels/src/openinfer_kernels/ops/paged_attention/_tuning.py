"""How the Triton kernels of paged_attention cut up their work."""

from typing import Any

import torch
import triton

from openinfer_kernels.ops.paged_attention import PagedAttentionSpec

MAX_SPLITS = 32
_TILE_KEYS = 64
_TILE_ROWS = 64
_MIN_KEYS_PER_SPLIT = 256
# Programs that fill a large GPU about twice; more splits than that only cost merging.
_TARGET_PROGRAMS = 264


def _most(spec: PagedAttentionSpec, size: int) -> int:
    # Keys and values of a tile are in flight twice; wide heads of wide numbers take smaller tiles
    # so that they fit the smallest shared memory (99 KiB).
    return size // max(1, spec.head_dim * spec.dtype.itemsize // 256)


def constexprs(spec: PagedAttentionSpec, rows: int) -> dict[str, Any]:
    """Compile-time choices of the decode and the prefill kernel."""
    return {
        "NUM_HEADS": spec.num_heads,
        "NUM_KV_HEADS": spec.num_kv_heads,
        "HEAD_DIM": spec.head_dim,
        "BLOCK_SIZE": spec.block_size,
        "ROWS": rows,
        "TILE": _most(spec, _TILE_KEYS),
        "PRECISION": "ieee" if spec.dtype is torch.float32 else "tf32",
    }


def decode_rows(spec: PagedAttentionSpec) -> int:
    """Rows of a decode program: its group's heads, and a matrix product has at least 16."""
    return max(16, int(triton.next_power_of_2(spec.num_heads // spec.num_kv_heads)))


def prefill_rows(spec: PagedAttentionSpec, max_seqlen_q: int) -> int:
    """Queries times heads of a tile: few for few queries, fewer for wide heads of wide numbers."""
    group = spec.num_heads // spec.num_kv_heads
    wanted = int(triton.next_power_of_2(group * max_seqlen_q))
    return max(16, int(triton.next_power_of_2(group)), min(_most(spec, _TILE_ROWS), wanted))


def num_splits(num_programs: int, max_seqlen_k: int) -> int:
    """Into how many the keys of each of `num_programs` are split."""
    by_length = max_seqlen_k // _MIN_KEYS_PER_SPLIT
    return max(1, min(MAX_SPLITS, by_length, _TARGET_PROGRAMS // num_programs))


def prefill_inputs(dtype: str) -> dict[str, str]:
    """Triton types of the arguments that all prefill kernels have."""
    integers = ("cu_seqlens_q", "seq_lens", "block_table")
    inputs = {"q_ptr": f"*{dtype}", "out_ptr": f"*{dtype}", "q_stride": "i64"}
    inputs |= {f"{name}_ptr": "*i32" for name in integers}
    return inputs | {"table_stride": "i64", "num_seqs": "i32", "scale": "fp32"}
