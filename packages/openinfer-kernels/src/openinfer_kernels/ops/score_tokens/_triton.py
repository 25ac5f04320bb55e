"""score_tokens in Triton, one launch: rows by blocks of the vocabulary; the last one merges.

A block leaves its largest score, the sum of exponentials, how many scores are above the token's,
and its likeliest ids. These are found one after another, as keys of score and id in one integer:
few are asked for, and a block stays in registers.
"""

# Kernel arguments are Triton's values, which have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# ruff: noqa: ANN001, ANN202

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from openinfer_kernels.gpu._support import TRITON_DTYPES, CompileCase, why_not_triton
from openinfer_kernels.memory._upload import upload
from openinfer_kernels.ops.score_tokens import Indices, ScoreTokens, ScoreTokensSpec, _torch

_BLOCK = 4096
_MAX_TOP = 32
"""More likely tokens than these are for torch: nobody asks for so many over HTTP."""
_IDS = 128
_WARPS = 8
_LOWEST = tl.constexpr(-(1 << 63))
_ID_BITS = tl.constexpr((1 << 32) - 1)
_INFINITY = tl.constexpr(float("inf"))
_NUMBERS = ("stride", "num_top", "num_by_id")


def supports(spec: ScoreTokensSpec, device: torch.device) -> str | None:
    """Every spec."""
    return why_not_triton(torch.float32, device)


@triton.jit
def _keys_of(x, ids):
    """Integers in the order of the scores, of equal ones the lowest id first."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) + (ids.to(tl.int64) ^ _ID_BITS)


@triton.jit
def _score_of(key):
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _store_float(cell, value, mask=None):
    tl.store(cell, value.to(tl.int32, bitcast=True), mask=mask)


@triton.jit(do_not_specialize=_NUMBERS)
def _score_tokens_kernel(
    scores_ptr, stride, token_ids_ptr, asked_ptr,
    max_ptr, sum_ptr, above_ptr, top_ptr, arrived_ptr, out_ptr, num_top, num_by_id,
    VOCAB: tl.constexpr, NUM_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
    TOPS: tl.constexpr, IDS: tl.constexpr,
):  # fmt: skip
    entry = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    asked = asked_ptr + entry * (1 + num_by_id)
    row = tl.load(asked)
    scores = scores_ptr + row * stride
    own = tl.load(scores + tl.load(token_ids_ptr + row)).to(tl.float32)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(scores + ids, mask=ids < VOCAB, other=-_INFINITY).to(tl.float32)
    largest = tl.max(x, axis=0)
    safe = tl.where(largest == -_INFINITY, 0.0, largest)
    at = entry * BLOCKS + block
    tl.store(max_ptr + at, largest)
    tl.store(sum_ptr + at, tl.sum(tl.exp(x - safe), axis=0))
    tl.store(above_ptr + at, tl.sum((x > own).to(tl.int32), axis=0))
    keys = tl.where(ids < VOCAB, _keys_of(x, ids), _LOWEST)
    index = tl.full((), 0, tl.int32)
    while index < num_top:
        best = tl.max(keys, axis=0)
        tl.store(top_ptr + at * TOPS + index, best)
        keys = tl.where(keys == best, _LOWEST, keys)
        index += 1
    # The program of a row that is done last merges.
    tl.debug_barrier()
    arrived = tl.atomic_add(arrived_ptr + entry, 1, sem="acq_rel")
    if arrived == NUM_BLOCKS - 1:
        out = out_ptr + entry * (2 + 2 * num_top + num_by_id)
        _merge(
            entry, scores, own, asked + 1, max_ptr, sum_ptr, above_ptr, top_ptr, out,
            num_top, num_by_id, NUM_BLOCKS, BLOCKS, TOPS, IDS,
        )  # fmt: skip
        tl.store(arrived_ptr + entry, 0)


@triton.jit
def _merge(
    entry, scores, own, by_id, max_ptr, sum_ptr, above_ptr, top_ptr, out, num_top, num_by_id,
    NUM_BLOCKS: tl.constexpr, BLOCKS: tl.constexpr, TOPS: tl.constexpr, IDS: tl.constexpr,
):  # fmt: skip
    """Writes what a row has come to, from what its blocks have left."""
    blocks = tl.arange(0, BLOCKS)
    is_block = blocks < NUM_BLOCKS
    at = entry * BLOCKS + blocks
    # Past the first cache: other programs of this kernel have written them.
    maxima = tl.load(max_ptr + at, mask=is_block, other=-_INFINITY, cache_modifier=".cg")
    sums = tl.load(sum_ptr + at, mask=is_block, other=0.0, cache_modifier=".cg")
    above = tl.load(above_ptr + at, mask=is_block, other=0, cache_modifier=".cg")
    largest = tl.max(maxima, axis=0)
    log_mass = largest + tl.log(tl.sum(sums * tl.exp(maxima - largest), axis=0))
    tl.store(out, tl.sum(above, axis=0) + 1)
    _store_float(out + 1, own - log_mass)
    if num_top > 0:
        lanes = tl.arange(0, BLOCKS * TOPS)
        is_key = (lanes // TOPS < NUM_BLOCKS) & (lanes % TOPS < num_top)
        keys = tl.load(
            top_ptr + entry * (BLOCKS * TOPS) + lanes,
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
        index = begin + tl.arange(0, IDS)
        wanted = tl.load(by_id + index, mask=index < num_by_id, other=0)
        x = tl.load(scores + wanted).to(tl.float32)
        _store_float(out + 2 + 2 * num_top + index, x - log_mass, mask=index < num_by_id)
        begin += IDS


def _constexprs(spec: ScoreTokensSpec) -> dict[str, int]:
    num_blocks = triton.cdiv(spec.vocab_size, _BLOCK)
    return {
        "VOCAB": spec.vocab_size,
        "NUM_BLOCKS": num_blocks,
        "BLOCKS": triton.next_power_of_2(num_blocks),
        "BLOCK": _BLOCK,
        "TOPS": _MAX_TOP,
        "IDS": _IDS,
    }


def plan(spec: ScoreTokensSpec, device: torch.device | str) -> ScoreTokens:
    """Binds score_tokens."""
    kernel: Any = _score_tokens_kernel
    sizes = _constexprs(spec)
    num_blocks, blocks = sizes["NUM_BLOCKS"], sizes["BLOCKS"]

    def scratch(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.zeros((spec.max_rows, *size), dtype=dtype, device=device)

    partials = (
        *(scratch(blocks), scratch(blocks), scratch(blocks, dtype=torch.int32)),
        scratch(blocks, _MAX_TOP, dtype=torch.int64),
        scratch(dtype=torch.int32),  # zeros, which the kernel leaves as zeros
    )

    def score_tokens(
        scores: torch.Tensor, token_ids: torch.Tensor, rows: Indices, num_top: int, by_id: Indices
    ) -> torch.Tensor:
        if num_top > _MAX_TOP:
            return _torch.score_tokens(scores, token_ids, rows, num_top, by_id)
        num_rows, num_by_id = by_id.shape
        asked = upload(np.concatenate((rows[:, None], by_id), axis=1), scores.device)
        shape = (num_rows, 2 + 2 * num_top + num_by_id)
        out = torch.empty(shape, dtype=torch.int32, device=scores.device)
        kernel[(num_rows, num_blocks)](
            scores, scores.stride(0), token_ids, asked, *partials, out, num_top, num_by_id,
            **sizes, num_warps=_WARPS,
        )  # fmt: skip
        return out

    return score_tokens


def compile_cases() -> list[CompileCase]:
    """The vocabulary of Qwen3, logits in each dtype; processed scores are float32."""
    spec = ScoreTokensSpec(vocab_size=151_936, max_rows=1)
    return [
        CompileCase(
            name=f"score_tokens-{dtype}",
            kernel=_score_tokens_kernel,
            signature={
                "scores_ptr": f"*{dtype}",
                "stride": "i32",
                "token_ids_ptr": "*i32",
                "asked_ptr": "*i64",
                "max_ptr": "*fp32",
                "sum_ptr": "*fp32",
                "above_ptr": "*i32",
                "top_ptr": "*i64",
                "arrived_ptr": "*i32",
                "out_ptr": "*i32",
                "num_top": "i32",
                "num_by_id": "i32",
            },
            constexprs=_constexprs(spec),
            num_warps=_WARPS,
        )
        for dtype in TRITON_DTYPES.values()
    ]
