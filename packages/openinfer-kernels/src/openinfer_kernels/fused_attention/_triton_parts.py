"""What the kernels of fused_attention are made of."""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl


@triton.jit
def pick(values, index, wanted):
    return tl.sum(tl.where(index == wanted, values, 0), axis=0)


@triton.jit
def normed(x, weight, scale):
    # Rounded before the weight multiplies, and after, as rms_norm does.
    normed = (x.to(tl.float32) * scale).to(weight.dtype).to(tl.float32)
    return (normed * weight.to(tl.float32)).to(weight.dtype).to(tl.float32)


@triton.jit
def prepared(
    x_ptr, offsets, mask, norm, norm_partner, cos, sin, dims, eps, AXIS: tl.constexpr,
    HEAD_DIM: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    # Heads at `offsets` of their first dimension, normalised and rotated. The partner of a
    # dimension is loaded again rather than moved between threads.
    HALF: tl.constexpr = HEAD_DIM // 2
    partner = (dims + HALF) % HEAD_DIM
    x = tl.load(x_ptr + offsets + dims, mask=mask, other=0.0)
    y = tl.load(x_ptr + offsets + partner, mask=mask, other=0.0)
    dtype = x.dtype
    if NORM:
        wide = x.to(tl.float32)
        mean = tl.sum(wide * wide, axis=AXIS, keep_dims=True) / HEAD_DIM
        scale = 1.0 / tl.sqrt(mean + eps)
        wide_x = normed(x, norm, scale)
        wide_y = normed(y, norm_partner, scale)
    else:
        wide_x = x.to(tl.float32)
        wide_y = y.to(tl.float32)
    return (wide_x * cos + tl.where(dims < HALF, -wide_y, wide_y) * sin).to(dtype)


@triton.jit
def prepared_halves(
    x_ptr, offsets, mask, norm_ptr, cos_sin_ptr, positions, eps,
    HEAD_DIM: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    """Heads at `offsets` of many tokens, normalised and rotated: their first and second halves.

    A rotation pairs a dimension of one half with one of the other, so halves need nothing twice.
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
    if NORM:
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
def norm_weights(norm_ptr, cos, dims, HEAD_DIM: tl.constexpr, NORM: tl.constexpr):
    # For each dimension and for its partner in the rotation. Without a norm, whatever is there.
    norm = cos
    norm_partner = cos
    if NORM:
        norm = tl.load(norm_ptr + dims)
        norm_partner = tl.load(norm_ptr + (dims + HEAD_DIM // 2) % HEAD_DIM)
    return norm, norm_partner


@triton.jit
def cache_tile(
    cache_ptr, table_ptr, keys, is_key, block_stride, kv_head, dims,
    BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
    offset = block * block_stride + (keys % BLOCK_SIZE) * WIDTH + kv_head * HEAD_DIM
    return tl.load(cache_ptr + offset[:, None] + dims[None, :], mask=is_key[:, None], other=0.0)


@triton.jit
def accumulate(scores, v, is_key, maximum, total, acc, PRECISION: tl.constexpr):
    scores = tl.where(is_key[None, :], scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
    shift = tl.where(new_maximum == float("-inf"), 0.0, new_maximum)
    weights = tl.exp2(scores - shift[:, None])
    decay = tl.exp2(maximum - shift)
    total = total * decay + tl.sum(weights, axis=1)
    acc = acc * decay[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
    return new_maximum, total, acc


@triton.jit
def prefetch(
    cache_ptr, table_ptr, keys, is_key, block_stride, kv_head,
    BLOCK_SIZE: tl.constexpr, WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    # Into the L2 cache, a line of 128 bytes at a time. Keys that are none fetch block 0.
    LINE: tl.constexpr = 1024 // cache_ptr.dtype.element_ty.primitive_bitwidth
    block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
    offset = block * block_stride + (keys % BLOCK_SIZE) * WIDTH + kv_head * HEAD_DIM
    lines = tl.arange(0, (HEAD_DIM + LINE - 1) // LINE) * LINE
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [(cache_ptr + offset[:, None] + lines[None, :]).to(tl.int64)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
