"""Back end `triton` of score_tokens: one launch over rows and blocks of the vocabulary.

A program computes a block's largest score, its sum of exponentials, how many scores are above the
drawn token's, and its most likely ids. The row's last program merges the blocks. The most likely
ids are found one after another, as integer keys of score and id: few are wanted, and a block stays
in registers.
"""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._family import tuned_for
from openinfer_kernels.gpu._support import TRITON_DTYPES, why_not_triton
from openinfer_kernels.memory._upload import upload
from openinfer_kernels.ops.score_tokens import Indices, ScoreTokens, ScoreTokensSpec, _torch
from openinfer_kernels.ops.score_tokens._tuning import SIZES, ScoreSizes

_LOWEST = tl.constexpr(-(1 << 63))
_ID_BITS = tl.constexpr((1 << 32) - 1)
_INFINITY = tl.constexpr(float("inf"))
# Arguments that vary between calls; specializing on them would compile more kernels.
_NUMBERS = ("stride", "num_top", "num_by_id")


def supports(spec: ScoreTokensSpec, device: torch.device) -> str | None:
    """Returns None if the kernel runs on this device, else the reason."""
    return why_not_triton(torch.float32, device)


@triton.jit
def _keys_of(x, ids):
    """Maps scores and ids to integers in the order of scores; of equal ones, the lowest id wins."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) + (ids.to(tl.int64) ^ _ID_BITS)


@triton.jit
def _score_of(key):
    """Returns the score of a key."""
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _store_float(cell, value, mask=None):
    """Stores the bits of floats as int32."""
    tl.store(cell, value.to(tl.int32, bitcast=True), mask=mask)


@triton.jit(do_not_specialize=_NUMBERS)
def _score_tokens_kernel(
    scores_ptr, stride, token_ids_ptr, requests_ptr,
    max_ptr, sum_ptr, above_ptr, top_ptr, finished_ptr, out_ptr, num_top, num_by_id,
    VOCAB_SIZE: tl.constexpr, NUM_BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
    MAX_TOP: tl.constexpr, READ_IDS: tl.constexpr,
):  # fmt: skip
    """Computes one block of a row: program (entry, block).

    `requests_ptr` is [entries, 1 + num_by_id], int64: the row, then the ids to score. Per-block
    tensors are [entries, BLOCKS_PAD], `top_ptr` [entries, BLOCKS_PAD, MAX_TOP]. `finished_ptr`
    counts the finished blocks of each entry; it is 0 before and after.
    """
    entry = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    request_ptr = requests_ptr + entry * (1 + num_by_id)
    row = tl.load(request_ptr)
    scores = scores_ptr + row * stride
    own = tl.load(scores + tl.load(token_ids_ptr + row)).to(tl.float32)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(scores + ids, mask=ids < VOCAB_SIZE, other=-_INFINITY).to(tl.float32)
    largest = tl.max(x, axis=0)
    safe = tl.where(largest == -_INFINITY, 0.0, largest)
    at = entry * BLOCKS_PAD + block
    tl.store(max_ptr + at, largest)
    tl.store(sum_ptr + at, tl.sum(tl.exp(x - safe), axis=0))
    tl.store(above_ptr + at, tl.sum((x > own).to(tl.int32), axis=0))
    keys = tl.where(ids < VOCAB_SIZE, _keys_of(x, ids), _LOWEST)
    index = tl.full((), 0, tl.int32)
    while index < num_top:
        best = tl.max(keys, axis=0)
        tl.store(top_ptr + at * MAX_TOP + index, best)
        keys = tl.where(keys == best, _LOWEST, keys)
        index += 1
    # The row's last program merges the blocks.
    tl.debug_barrier()
    num_finished = tl.atomic_add(finished_ptr + entry, 1, sem="acq_rel")
    if num_finished == NUM_BLOCKS - 1:
        out = out_ptr + entry * (2 + 2 * num_top + num_by_id)
        _merge_blocks(
            entry, scores, own, request_ptr + 1, max_ptr, sum_ptr, above_ptr, top_ptr, out,
            num_top, num_by_id, NUM_BLOCKS, BLOCKS_PAD, MAX_TOP, READ_IDS,
        )  # fmt: skip
        tl.store(finished_ptr + entry, 0)


@triton.jit
def _merge_blocks(
    entry, scores, own, by_id, max_ptr, sum_ptr, above_ptr, top_ptr, out, num_top, num_by_id,
    NUM_BLOCKS: tl.constexpr, BLOCKS_PAD: tl.constexpr, MAX_TOP: tl.constexpr,
    READ_IDS: tl.constexpr,
):  # fmt: skip
    """Merges the blocks of a row and writes its logprobs; see `ScoreTokens` for their order.

    The loads bypass the L1 cache: other programs of this kernel wrote the values.
    """
    blocks = tl.arange(0, BLOCKS_PAD)
    is_block = blocks < NUM_BLOCKS
    at = entry * BLOCKS_PAD + blocks
    maxima = tl.load(max_ptr + at, mask=is_block, other=-_INFINITY, cache_modifier=".cg")
    sums = tl.load(sum_ptr + at, mask=is_block, other=0.0, cache_modifier=".cg")
    above = tl.load(above_ptr + at, mask=is_block, other=0, cache_modifier=".cg")
    largest = tl.max(maxima, axis=0)
    log_mass = largest + tl.log(tl.sum(sums * tl.exp(maxima - largest), axis=0))
    tl.store(out, tl.sum(above, axis=0) + 1)
    _store_float(out + 1, own - log_mass)
    if num_top > 0:
        lanes = tl.arange(0, BLOCKS_PAD * MAX_TOP)
        is_key = (lanes // MAX_TOP < NUM_BLOCKS) & (lanes % MAX_TOP < num_top)
        keys = tl.load(
            top_ptr + entry * (BLOCKS_PAD * MAX_TOP) + lanes,
            mask=is_key, other=_LOWEST, cache_modifier=".cg",
        )  # fmt: skip
        index = tl.full((), 0, tl.int32)
        while index < num_top:
            best = tl.max(keys, axis=0)
            tl.store(out + 2 + index, ((best & _ID_BITS) ^ _ID_BITS).to(tl.int32))
            _store_float(out + 2 + num_top + index, _score_of(best) - log_mass)
            keys = tl.where(keys == best, _LOWEST, keys)
            index += 1
    begin = tl.full((), 0, tl.int32)
    while begin < num_by_id:
        index = begin + tl.arange(0, READ_IDS)
        wanted = tl.load(by_id + index, mask=index < num_by_id, other=0)
        x = tl.load(scores + wanted).to(tl.float32)
        _store_float(out + 2 + 2 * num_top + index, x - log_mass, mask=index < num_by_id)
        begin += READ_IDS


def _constexprs(spec: ScoreTokensSpec, sizes: ScoreSizes) -> dict[str, int]:
    num_blocks = triton.cdiv(spec.vocab_size, sizes.block)
    return {
        "VOCAB_SIZE": spec.vocab_size,
        "NUM_BLOCKS": num_blocks,
        "BLOCKS_PAD": triton.next_power_of_2(num_blocks),
        "BLOCK": sizes.block,
        "MAX_TOP": sizes.max_top,
        "READ_IDS": sizes.read_ids,
    }


def plan(spec: ScoreTokensSpec, device: torch.device | str) -> ScoreTokens:
    """Binds the kernel and allocates the per-block results."""
    sizes = tuned_for(SIZES, torch.device(device))
    kernel: Any = _score_tokens_kernel
    constexprs = _constexprs(spec, sizes)
    num_blocks, blocks = constexprs["NUM_BLOCKS"], constexprs["BLOCKS_PAD"]

    def scratch(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros((spec.max_rows, *size), dtype=dtype, device=device)

    partials = (
        *(scratch(blocks), scratch(blocks), scratch(blocks, dtype=torch.int32)),
        scratch(blocks, sizes.max_top, dtype=torch.int64),
        scratch(dtype=torch.int32),  # finished blocks; the kernel resets them to 0
    )

    def score_tokens(
        scores: torch.Tensor, token_ids: torch.Tensor, rows: Indices, num_top: int, by_id: Indices
    ) -> torch.Tensor:
        if num_top > sizes.max_top:
            return _torch.score_tokens(scores, token_ids, rows, num_top, by_id)
        num_rows, num_by_id = by_id.shape
        requests = upload(np.concatenate((rows[:, None], by_id), axis=1), scores.device)
        shape = (num_rows, 2 + 2 * num_top + num_by_id)
        out = torch.empty(shape, dtype=torch.int32, device=scores.device)
        kernel[(num_rows, num_blocks)](
            scores, scores.stride(0), token_ids, requests, *partials, out, num_top, num_by_id,
            **constexprs, num_warps=sizes.num_warps,
        )  # fmt: skip
        return out

    return score_tokens


def compile_cases() -> list[CompileCase]:
    """Returns the kernel for Qwen3's vocabulary and each dtype; processed scores are float32."""
    sizes = SIZES["default"]
    spec = ScoreTokensSpec(vocab_size=151_936, max_rows=1)
    return [
        CompileCase(
            name=f"score_tokens-{dtype}",
            kernel=_score_tokens_kernel,
            signature={
                "scores_ptr": f"*{dtype}",
                "stride": "i32",
                "token_ids_ptr": "*i32",
                "requests_ptr": "*i64",
                "max_ptr": "*fp32",
                "sum_ptr": "*fp32",
                "above_ptr": "*i32",
                "top_ptr": "*i64",
                "finished_ptr": "*i32",
                "out_ptr": "*i32",
                "num_top": "i32",
                "num_by_id": "i32",
            },
            constexprs=_constexprs(spec, sizes),
            num_warps=sizes.num_warps,
        )
        for dtype in TRITON_DTYPES.values()
    ]
