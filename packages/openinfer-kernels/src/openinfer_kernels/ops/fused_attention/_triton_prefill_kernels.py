"""The kernel before the attention of a prefill: head norms, rotation and cache writes."""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from openinfer_kernels.ops.fused_attention._triton_functions import (
    head_pair,
    norm_weights,
    normed_and_rotated,
    rotation,
)


@triton.jit(do_not_specialize=["num_tokens"])
def prepare_kernel(
    qkv_ptr, q_norm_ptr, k_norm_ptr, cos_sin_ptr, positions_ptr, slot_mapping_ptr,
    q_out_ptr, k_cache_ptr, v_cache_ptr, block_stride, num_tokens, eps,
    NUM_HEADS: tl.constexpr, NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, HAS_NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Prepares BLOCK_M tokens of one head: program (head, tile of tokens).

    Heads of `qkv_ptr` [num_tokens, NUM_HEADS + 2 * NUM_KV_HEADS, HEAD_DIM] are queries, keys and
    values. Queries are normalised and rotated into `q_out_ptr` [num_tokens, NUM_HEADS, HEAD_DIM].
    Keys are normalised, rotated and written to the cache at `slot_mapping_ptr` [num_tokens]; values
    are copied there. With PDL, weights, cosines and slots are loaded before the program waits for
    the kernel that computes `qkv_ptr`.
    """
    if PDL:
        gdc_launch_dependents()
    head = tl.program_id(0)
    tokens = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_token = tokens < num_tokens
    dims = tl.arange(0, HEAD_DIM)
    is_query = head < NUM_HEADS
    if is_query:
        target = (tokens * NUM_HEADS + head)[:, None] * HEAD_DIM
    else:
        kv_head = (head - NUM_HEADS) % NUM_KV_HEADS
        slot = tl.load(slot_mapping_ptr + tokens, mask=is_token, other=0)
        row = (slot % BLOCK_SIZE) * (NUM_KV_HEADS * HEAD_DIM) + kv_head * HEAD_DIM
        target = ((slot // BLOCK_SIZE) * block_stride + row)[:, None]
    source = (tokens * (NUM_HEADS + 2 * NUM_KV_HEADS) + head) * HEAD_DIM
    targets = target + dims[None, :]
    if head < NUM_HEADS + NUM_KV_HEADS:
        position = tl.load(positions_ptr + tokens, mask=is_token, other=0)
        cos, sin = rotation(cos_sin_ptr, position, dims, HEAD_DIM)
        norm_ptr = q_norm_ptr
        if HAS_NORM:
            norm_ptr = q_norm_ptr if is_query else k_norm_ptr
        norm, norm_partner = norm_weights(norm_ptr, dims, HEAD_DIM, HAS_NORM)
        if PDL:
            gdc_wait()
        x, partner = head_pair(qkv_ptr, source, is_token, dims, HEAD_DIM)
        x = normed_and_rotated(
            x, partner, norm, norm_partner, cos, sin, dims, eps, HEAD_DIM, HAS_NORM
        )
        if is_query:
            tl.store(q_out_ptr + targets, x, mask=is_token[:, None])
        else:
            tl.store(k_cache_ptr + targets, x, mask=is_token[:, None])
    else:
        if PDL:
            gdc_wait()
        value = tl.load(
            qkv_ptr + source[:, None] + dims[None, :], mask=is_token[:, None], other=0.0
        )
        tl.store(v_cache_ptr + targets, value, mask=is_token[:, None])
