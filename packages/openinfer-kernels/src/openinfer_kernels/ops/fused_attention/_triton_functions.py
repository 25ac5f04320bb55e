"""Device functions that the kernels of fused_attention share."""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl


@triton.jit
def pick(values, index, wanted):
    """Returns the element of `values` whose index is `wanted`."""
    return tl.sum(tl.where(index == wanted, values, 0), axis=0)


@triton.jit
def normed(x, weight, scale):
    """Returns a normalised head in float32.

    It is rounded where `rms_norm` rounds: before the weight multiplies, and after.
    """
    normed = (x.to(tl.float32) * scale).to(weight.dtype).to(tl.float32)
    return (normed * weight.to(tl.float32)).to(weight.dtype).to(tl.float32)


@triton.jit
def head_pair(x_ptr, offsets, mask, dims, HEAD_DIM: tl.constexpr):
    """Loads heads, and for each dimension its partner in the rotation: twice [rows, dims].

    `offsets` point at the heads' first dimensions. Loading the partner is cheaper than moving it
    between threads, and both loads wait for memory together.
    """
    partner = (dims + HEAD_DIM // 2) % HEAD_DIM
    at = x_ptr + offsets[:, None]
    x = tl.load(at + dims[None, :], mask=mask[:, None], other=0.0)
    y = tl.load(at + partner[None, :], mask=mask[:, None], other=0.0)
    return x, y


@triton.jit
def rotation(cos_sin_ptr, positions, dims, HEAD_DIM: tl.constexpr):
    """Loads cosines and sines of each position: twice [positions, dims]."""
    HALF: tl.constexpr = HEAD_DIM // 2
    angles = cos_sin_ptr + positions[:, None] * HEAD_DIM + (dims % HALF)[None, :]
    return tl.load(angles), tl.load(angles + HALF)


@triton.jit
def norm_weights(norm_ptr, dims, HEAD_DIM: tl.constexpr, HAS_NORM: tl.constexpr):
    """Loads the norm weight of each dimension, and of its partner in the rotation."""
    norm = 0.0
    norm_partner = 0.0
    if HAS_NORM:
        norm = tl.load(norm_ptr + dims[None, :])
        norm_partner = tl.load(norm_ptr + ((dims + HEAD_DIM // 2) % HEAD_DIM)[None, :])
    return norm, norm_partner


@triton.jit
def head_norm_weights(
    q_norm_ptr, k_norm_ptr, is_query, is_key, dims, HEAD_DIM: tl.constexpr, HAS_NORM: tl.constexpr
):
    """Loads `norm_weights` for rows that are queries or keys, in the layout of the rows."""
    norm = 0.0
    norm_partner = 0.0
    if HAS_NORM:
        partner = (dims + HEAD_DIM // 2) % HEAD_DIM
        at = dims[None, :] + is_query.to(tl.int32)[:, None] * 0
        at_partner = partner[None, :] + is_query.to(tl.int32)[:, None] * 0
        norm = tl.load(q_norm_ptr + at, mask=is_query[:, None], other=0.0)
        norm += tl.load(k_norm_ptr + at, mask=is_key[:, None], other=0.0)
        norm_partner = tl.load(q_norm_ptr + at_partner, mask=is_query[:, None], other=0.0)
        norm_partner += tl.load(k_norm_ptr + at_partner, mask=is_key[:, None], other=0.0)
    return norm, norm_partner


@triton.jit
def normed_and_rotated(
    x,
    partner,
    norm,
    norm_partner,
    cos,
    sin,
    dims,
    eps,
    HEAD_DIM: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """Returns heads in the cache's dtype, normalised if HAS_NORM, then rotated: [rows, dims]."""
    dtype = x.dtype
    wide = x.to(tl.float32)
    wide_partner = partner.to(tl.float32)
    if HAS_NORM:
        mean = tl.sum(wide * wide, axis=1, keep_dims=True) / HEAD_DIM
        scale = 1.0 / tl.sqrt(mean + eps)
        wide = normed(x, norm, scale)
        wide_partner = normed(partner, norm_partner, scale)
    is_first = (dims < HEAD_DIM // 2)[None, :]
    return (wide * cos + tl.where(is_first, -wide_partner, wide_partner) * sin).to(dtype)


@triton.jit
def normed_and_rotated_halves(
    x_ptr, offsets, mask, norm_ptr, cos_sin_ptr, positions, eps,
    HEAD_DIM: tl.constexpr, HAS_NORM: tl.constexpr,
):  # fmt: skip
    """Loads, normalises and rotates heads at `offsets`: returns their first and second halves.

    The rotation pairs a dimension of one half with one of the other, so no element is loaded twice.
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    dims = tl.arange(0, HALF)
    first = tl.load(x_ptr + offsets[:, None] + dims[None, :], mask=mask[:, None], other=0.0)
    second = tl.load(
        x_ptr + offsets[:, None] + (dims + HALF)[None, :], mask=mask[:, None], other=0.0
    )
    dtype = first.dtype
    wide_first = first.to(tl.float32)
    wide_second = second.to(tl.float32)
    if HAS_NORM:
        squares = wide_first * wide_first + wide_second * wide_second
        scale = 1.0 / tl.sqrt(tl.sum(squares, axis=1, keep_dims=True) / HEAD_DIM + eps)
        wide_first = normed(first, tl.load(norm_ptr + dims)[None, :], scale)
        wide_second = normed(second, tl.load(norm_ptr + HALF + dims)[None, :], scale)
    angles = cos_sin_ptr + positions[:, None] * HEAD_DIM + dims[None, :]
    cos = tl.load(angles)
    sin = tl.load(angles + HALF)
    rotated_first = wide_first * cos - wide_second * sin
    rotated_second = wide_second * cos + wide_first * sin
    return rotated_first.to(dtype), rotated_second.to(dtype)


@triton.jit
def cache_offsets(
    block, keys, block_stride, kv_head,
    BLOCK_SIZE: tl.constexpr, TOKEN_STRIDE: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Returns where a head of each key begins in the cache, given the keys' blocks."""
    return (
        block.to(tl.int64) * block_stride + (keys % BLOCK_SIZE) * TOKEN_STRIDE + kv_head * HEAD_DIM
    )


@triton.jit
def cache_tile(cache_ptr, offsets, is_key, dims, MASKED: tl.constexpr = True):
    """Loads keys or values at `offsets`: [keys, dims]. If MASKED, others than keys are 0."""
    ptrs = cache_ptr + offsets[:, None] + dims[None, :]
    if MASKED:
        return tl.load(ptrs, mask=is_key[:, None], other=0.0)
    return tl.load(ptrs)


@triton.jit
def softmax_step(scores, v, is_key, maximum, total, acc, log2_scale, PRECISION: tl.constexpr):
    """Updates the online softmax, in base 2, with the scores of a tile.

    `total` has a column for each key of a tile; its columns are summed after the last tile.
    """
    scores = tl.where(is_key[None, :], scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1) * log2_scale)
    shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = tl.exp2(scores * log2_scale - shift[:, None])
    decay = tl.exp2(maximum - shift)
    total = total * decay[:, None] + weights
    acc = tl.dot(weights.to(v.dtype), v, acc * decay[:, None], input_precision=PRECISION)
    return new_maximum, total, acc


@triton.jit
def prefetch(
    k_cache_ptr, v_cache_ptr, table_ptr, keys, end, block_stride, kv_head,
    BLOCK_SIZE: tl.constexpr, TOKEN_STRIDE: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Prefetches keys and values into the L2 cache; positions from `end` on, the last key."""
    keys = tl.minimum(keys, tl.maximum(end - 1, 0))
    block = tl.load(table_ptr + keys // BLOCK_SIZE)
    offsets = cache_offsets(block, keys, block_stride, kv_head, BLOCK_SIZE, TOKEN_STRIDE, HEAD_DIM)
    _prefetch_lines(k_cache_ptr, offsets, HEAD_DIM)
    _prefetch_lines(v_cache_ptr, offsets, HEAD_DIM)


@triton.jit
def _prefetch_lines(cache_ptr, offsets, HEAD_DIM: tl.constexpr):
    """Prefetches heads at `offsets` in cache lines of 128 bytes."""
    LINE: tl.constexpr = 1024 // cache_ptr.dtype.element_ty.primitive_bitwidth
    lines = tl.arange(0, (HEAD_DIM + LINE - 1) // LINE) * LINE
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [(cache_ptr + offsets[:, None] + lines[None, :]).to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
