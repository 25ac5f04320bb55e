"""Device functions of sample that compute a row's scores and its random numbers."""

# Kernel arguments are Triton's values, which have no Python types. What is known when a kernel is
# compiled has an `if` of its own, so that the compiler leaves out the code below it.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

import triton
import triton.language as tl

from openinfer_kernels.ops.sample import IN_PROMPT, PADDING, Column, Failure, Needs
from openinfer_kernels.ops.sample._random import GAMMA, MULTIPLIERS

NOISE = tl.constexpr(Needs.NOISE)
FILTER = tl.constexpr(Needs.FILTER)
MIN_TOKENS = tl.constexpr(Needs.MIN_TOKENS)
BIAS = tl.constexpr(Needs.BIAS)
PENALTIES = tl.constexpr(Needs.PENALTIES)
BAD_WORDS = tl.constexpr(Needs.BAD_WORDS)
PROCESSED = tl.constexpr(Needs.PROCESSED)
NO_FAILURE = tl.constexpr(Failure.NONE)
NOT_FINITE = tl.constexpr(Failure.NOT_FINITE)
NOTHING_LEFT = tl.constexpr(Failure.NOTHING_LEFT)
NEEDS_COLUMN = tl.constexpr(int(Column.NEEDS))
SEED_COLUMN = tl.constexpr(int(Column.SEED))
FIRST_OUTPUT_COLUMN = tl.constexpr(int(Column.FIRST_OUTPUT_POSITION))
FIRST_STOP_COLUMN = tl.constexpr(int(Column.FIRST_STOP_POSITION))
TOP_K_COLUMN = tl.constexpr(int(Column.TOP_K))
SCALE_COLUMN = tl.constexpr(int(Column.INVERSE_TEMPERATURE))
TOP_P_COLUMN = tl.constexpr(int(Column.TOP_P))
MIN_P_COLUMN = tl.constexpr(int(Column.LOG_MIN_P))
REPETITION_COLUMN = tl.constexpr(int(Column.REPETITION_PENALTY))
PRESENCE_COLUMN = tl.constexpr(int(Column.PRESENCE_PENALTY))
FREQUENCY_COLUMN = tl.constexpr(int(Column.FREQUENCY_PENALTY))
STOP_IDS_COLUMN = tl.constexpr(int(Column.STOP_IDS))
COUNT_BITS = tl.constexpr(IN_PROMPT - 1)
NO_ID = tl.constexpr(PADDING)
GAMMA_WORD = tl.constexpr(GAMMA)
MULTIPLIER_1 = tl.constexpr(MULTIPLIERS[0])
MULTIPLIER_2 = tl.constexpr(MULTIPLIERS[1])
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def float_at(table, column):
    """Loads a column of one row that holds a float64, as float32."""
    return tl.load(table + column).to(tl.float64, bitcast=True).to(tl.float32)


@triton.jit
def key_of(x):
    """Maps floats to unsigned integers in the same order; equal floats have equal keys."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return ordered.to(tl.uint32, bitcast=True) ^ 0x80000000


@triton.jit
def value_of(key):
    """Returns the float of a key; the inverse of `key_of`."""
    ordered = (key ^ 0x80000000).to(tl.int32, bitcast=True)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _mix(word):
    """Applies SplitMix64's finaliser; see `_random`."""
    word = (word ^ (word >> 30)) * MULTIPLIER_1
    word = (word ^ (word >> 27)) * MULTIPLIER_2
    return word ^ (word >> 31)


@triton.jit
def stream_key(table, position):
    """Returns the key of a row's random numbers; see `_random.row_keys`."""
    seed = tl.load(table + SEED_COLUMN).to(tl.uint64, bitcast=True)
    return _mix(_mix(seed + GAMMA_WORD) + position.to(tl.uint64))


if triton.knobs.runtime.interpret:

    @triton.jit
    def _log(x):
        return tl.log(x)

else:

    @triton.jit
    def _log(x):
        """Approximates the logarithm within 3e-7, at a tenth of the library's cost."""
        log2 = tl.inline_asm_elementwise(
            "lg2.approx.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
        return log2 * 0.6931471805599453


@triton.jit
def noise_of(stream, ids):
    """Returns Gumbel noise of token ids; see `_random.gumbel_noise`."""
    pair = (ids >> 1).to(tl.uint64) + 1
    word = _mix(stream + pair * GAMMA_WORD)
    half = (word >> ((ids & 1) * 32).to(tl.uint64)).to(tl.uint32) & 0x7FFFFFFF
    u = half.to(tl.int32).to(tl.float32) * 4.656612873077393e-10  # 2 ** -31
    u = tl.minimum(tl.maximum(u, 2.3283064365386963e-10), 0.9999999403953552)
    # -log1p(-u). For small u it is a series, because the logarithm of a number near 1 loses digits.
    series = u * (1 + u * (1 / 2 + u * (1 / 3 + u * (1 / 4 + u * (1 / 5 + u * (1 / 6))))))
    exponential = tl.where(u < 0.0625, series, -_log(1 - u))
    return -_log(exponential)


@triton.jit
def scores_of(
    logits, counts, bias, id_mask, table, needs, has_mask, cols, is_id, HAS_CONTROLS: tl.constexpr,
    drawn=None,
):  # fmt: skip
    """Returns the scores of ids `cols` before the filters; -inf outside the vocabulary.

    `logits` and `id_mask` point to the row, `counts`, `bias` and `table` to its slot. If `drawn` is
    given, that token has been counted already; the scores are those from before it was counted.
    """
    x = tl.load(logits + cols, mask=is_id, other=-INFINITY).to(tl.float32)
    if HAS_CONTROLS:
        if needs & BIAS:
            x += tl.load(bias + cols, mask=is_id, other=0.0)
        if needs & PENALTIES:
            seen = tl.load(counts + cols, mask=is_id, other=0)
            if drawn is not None:
                seen -= (cols == drawn).to(tl.int32)
            num_output = seen & COUNT_BITS
            repetition = float_at(table, REPETITION_COLUMN)
            repeated = tl.where(x > 0, x / repetition, x * repetition)
            x = tl.where(seen != 0, repeated, x)
            x -= float_at(table, FREQUENCY_COLUMN) * num_output.to(tl.float32)
            x -= tl.where(num_output > 0, float_at(table, PRESENCE_COLUMN), 0.0)
        if has_mask:
            words = tl.load(id_mask + (cols >> 5), mask=is_id, other=0)
            x = tl.where(((words >> (cols & 31)) & 1) != 0, x, -INFINITY)
    return x * float_at(table, SCALE_COLUMN)
