"""sample in Triton: blocks of every row at once, then one program a row; no sort, no host.

1. `ban_kernel`, where rows hold stop ids back or have bad words or a grammar: a bit per id.
2. `block_kernel`, rows by blocks of the vocabulary: the best perturbed score, the largest score,
   the sum of exponentials, and the largest score of each group of ids. Where no row filters, the
   last of a row's programs merges its blocks and enters the token in the tables: that is all.
3. `row_kernel`, a program a row: merges the blocks, and filters where a row asks for it.
4. `process_kernel`, where processed scores are wanted.

`enter_kernel` fills in a row's bias or counts before its first step.

**Filters without a sort.** The k-th largest group maximum is at most the k-th largest score, so the
scores from it on are few and hold all that top-k leaves. They are gathered, and bisection over the
bits of a float finds the exact thresholds among them. Rows without a small k draw from all tokens
that min-p leaves and then look at the winner: it is in the nucleus if the probability above it
stays below top_p. If not, nothing up to its score is, and the best score above it is next. The
answer is the best perturbed score among the tokens kept either way, which is the definition.

Groups whose maximum is too low are never read again. Sums have the same order whatever the batch.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton

from openinfer_kernels.gpu._support import (
    TRITON_DTYPES,
    CompileCase,
    launches_dependents,
    why_not_triton,
)
from openinfer_kernels.memory._upload import upload
from openinfer_kernels.ops.sample import (
    Column,
    Drawn,
    Indices,
    Needs,
    Sample,
    SampleRows,
    SampleSpec,
    SampleState,
)
from openinfer_kernels.ops.sample._triton_kernels import (
    ban_kernel,
    block_kernel,
    enter_kernel,
    process_kernel,
    row_kernel,
)

_BLOCK = 4096
_BLOCK_WARPS = 8
_ROW_WARPS = 16
# Scores that a row's program gathers at most, and those that it reads at a time.
_CANDIDATES = 4096
_LISTED_IDS = 4096
_MAX_GROUPS = 4096
_MAX_SMALL_K = 1024
_ENTERED = 512


def supports(spec: SampleSpec, device: torch.device) -> str | None:
    """Vocabularies of up to a million ids."""
    if spec.vocab_size > _MAX_GROUPS * 256:
        return f"a vocabulary of {spec.vocab_size} ids is too large"
    return why_not_triton(torch.float32, device)


def plan(spec: SampleSpec, state: SampleState, device: torch.device | str) -> Sample:
    """Binds sample."""
    return _TritonSample(spec, state, torch.device(device))


class _Shape:
    """Compile-time sizes of a vocabulary."""

    def __init__(self, spec: SampleSpec) -> None:
        self.vocab = spec.vocab_size
        self.num_blocks = triton.cdiv(self.vocab, _BLOCK)
        self.group = 64
        while self.num_blocks * _BLOCK // self.group > _MAX_GROUPS:
            self.group *= 2
        self.num_groups = self.num_blocks * _BLOCK // self.group
        self.blocks = triton.next_power_of_2(self.num_blocks)
        self.groups = triton.next_power_of_2(self.num_groups)
        self.width = triton.cdiv(self.vocab, 32)
        self.num_columns = int(Column.STOP_IDS) + spec.max_stop_ids

    def sizes(self, has_controls: bool) -> dict[str, Any]:
        """Of every kernel that computes scores."""
        return {
            "VOCAB": self.vocab,
            "NUM_COLUMNS": self.num_columns,
            "WIDTH": self.width,
            "CONTROLS": has_controls,
        }

    def block_sizes(self, spec: SampleSpec) -> dict[str, Any]:
        """Of the block kernel and the row kernel."""
        return {
            "LENGTH": spec.max_bad_word_ids,
            "NUM_BLOCKS": self.num_blocks,
            "BLOCKS": self.blocks,
            "GROUP": self.group,
            "GROUPS": self.groups,
        }

    def row_sizes(self) -> dict[str, Any]:
        """Of the row kernel alone."""
        return {
            "NUM_GROUPS": self.num_groups,
            "SMALL_K": min(_MAX_SMALL_K, self.groups),
            "LISTED": _LISTED_IDS // self.group,
            "CANDIDATES": _CANDIDATES,
        }

    def ban_sizes(self, spec: SampleSpec) -> dict[str, Any]:
        """Of the ban kernel."""
        return {
            "NUM_COLUMNS": self.num_columns,
            "NUM_STOPS": spec.max_stop_ids,
            "STOPS": triton.next_power_of_2(spec.max_stop_ids),
            "NUM_WORDS": spec.max_bad_words,
            "WORDS": triton.next_power_of_2(spec.max_bad_words),
            "LENGTH": spec.max_bad_word_ids,
            "WIDTH": self.width,
            "CHUNK": 1024,
        }


class _TritonSample:
    is_recordable = True

    def __init__(self, spec: SampleSpec, state: SampleState, device: torch.device) -> None:
        self._spec = spec
        self._state = state
        self._shape = shape = _Shape(spec)
        self._block_sizes = shape.block_sizes(spec)
        self._row_sizes = shape.row_sizes()
        self._ban_sizes = shape.ban_sizes(spec)

        def scratch(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros((spec.max_rows, *size), dtype=dtype, device=device)

        self._bans = scratch(shape.width, dtype=torch.int32)
        self._is_banned = scratch(dtype=torch.int32)
        self._partials = (
            scratch(shape.blocks),
            scratch(shape.blocks, dtype=torch.int32),
            *(scratch(shape.blocks) for _ in range(3)),
            scratch(shape.groups),
        )
        self._lists = (
            scratch(shape.groups, dtype=torch.int32),
            scratch(_CANDIDATES),
            scratch(_CANDIDATES, dtype=torch.int32),
        )
        self._thresholds = scratch()
        # Zeros, which the kernel leaves as zeros. Graphs keep the address.
        self._arrived = scratch(dtype=torch.int32)
        self._has_pdl = launches_dependents(device)
        self._launch = {"launch_pdl": True} if self._has_pdl else {}

    def __call__(self, logits: torch.Tensor, rows: SampleRows) -> Drawn:
        shape, state, needs = self._shape, self._state, rows.all_needs
        num_rows, device = len(logits), logits.device
        has_controls = bool(needs & Needs.CONTROLS) or rows.masks is not None
        has_filters = bool(needs & Needs.FILTER)
        packed = torch.empty((2, num_rows), dtype=torch.int32, device=device)
        if num_rows == 0:
            return Drawn(packed=packed, processed=None)
        if has_controls:
            self._ban(rows, num_rows)
        scores = (
            *(logits, logits.stride(0), rows.slots, rows.positions, state.table),
            *(state.counts, state.bias, self._bans, self._is_banned),
        )
        out = state.recent, state.last_token, packed, self._thresholds
        common = {
            **shape.sizes(has_controls), **self._block_sizes, **self._launch, "PDL": self._has_pdl,
        }  # fmt: skip
        blocks: Any = block_kernel
        blocks[(num_rows, shape.num_blocks)](
            *scores, *self._partials, self._arrived, *out, **common,
            FILTERS=has_filters, BLOCK=_BLOCK, num_warps=_BLOCK_WARPS,
        )  # fmt: skip
        if has_filters:
            row: Any = row_kernel
            row[(num_rows,)](
                *scores, *self._partials, *self._lists, *out, **common, **self._row_sizes,
                num_warps=_ROW_WARPS,
            )  # fmt: skip
        asked = rows.need(Needs.PROCESSED)
        processed = self.processed(logits, rows, packed, asked) if len(asked) else None
        return Drawn(packed=packed, processed=processed)

    def processed(
        self, logits: torch.Tensor, rows: SampleRows, packed: torch.Tensor, index: Indices
    ) -> torch.Tensor:
        """See `RecordableSample.processed`."""
        state, shape = self._state, self._shape
        has_controls = bool(rows.all_needs & Needs.CONTROLS) or rows.masks is not None
        device = logits.device
        processed = torch.empty((len(index), shape.vocab), dtype=torch.float32, device=device)
        process: Any = process_kernel
        process[(len(index), shape.num_blocks)](
            upload(index, device), logits, logits.stride(0), rows.slots,
            state.table, state.counts, state.bias, self._bans, self._is_banned,
            packed, self._thresholds, processed,
            **shape.sizes(has_controls), BLOCK=_BLOCK, num_warps=_BLOCK_WARPS,
        )  # fmt: skip
        return processed

    def enter(self, row: torch.Tensor, ids: Indices, values: npt.NDArray[Any]) -> None:
        """See `Sample.enter`."""
        # By a kernel of our own: torch's operators for it hold 25 MB of the host's memory and more.
        if len(ids) == 0:
            return
        packed = upload(np.stack((ids.astype(np.int32), values.view(np.int32))), row.device)
        kernel: Any = enter_kernel
        grid = (triton.cdiv(len(ids), _ENTERED),)
        kernel[grid](row.view(torch.int32), packed, len(ids), BLOCK=_ENTERED, num_warps=4)

    def _ban(self, rows: SampleRows, num_rows: int) -> None:
        state = self._state
        masks = mask_rows = state.table  # not read
        if rows.masks is not None:
            index, masks = rows.masks
            of_row = np.full(num_rows, -1, np.int64)
            of_row[index] = range(len(index))
            mask_rows = upload(of_row, state.table.device)
        kernel: Any = ban_kernel
        kernel[(num_rows,)](
            rows.slots, rows.positions, state.table, state.bad_words, state.recent,
            masks, mask_rows, self._bans, self._is_banned,
            **self._ban_sizes, HAS_MASKS=rows.masks is not None, num_warps=8,
        )  # fmt: skip


def compile_cases() -> list[CompileCase]:
    """The vocabulary of Qwen3: plain in each dtype of the logits, and with everything."""
    spec = SampleSpec(vocab_size=151_936, num_slots=1, max_rows=1)
    plain = [
        case for dtype in TRITON_DTYPES.values() for case in _compile_cases_of(spec, dtype, False)
    ]
    return [*plain, *_compile_cases_of(spec, "bf16", True), *_controls_cases(spec)]


_LOGITS = {"stride": "i32", "slots": "*i64", "table_ptr": "*i64", "counts_ptr": "*i32"}
_LOGITS |= {"bias_ptr": "*fp32", "bans_ptr": "*i32", "is_banned_ptr": "*i32"}
_PARTIALS = {"positions": "*i64", "best_ptr": "*fp32", "best_id_ptr": "*i32"}
_PARTIALS |= {"best_score_ptr": "*fp32", "max_ptr": "*fp32", "sum_ptr": "*fp32"}
_PARTIALS |= {"group_max_ptr": "*fp32"}
_OUT = {"recent_ptr": "*i32", "last_token_ptr": "*i64", "packed_ptr": "*i32"}
_OUT |= {"threshold_ptr": "*fp32"}


def _compile_cases_of(spec: SampleSpec, dtype: str, is_full: bool) -> list[CompileCase]:
    shape = _Shape(spec)
    name = f"{dtype}-{spec.vocab_size}-{'full' if is_full else 'plain'}"
    logits = {"logits_ptr": f"*{dtype}", **_LOGITS}
    sizes = {**shape.sizes(is_full), **shape.block_sizes(spec)}
    block = CompileCase(
        name=f"sample.block-{name}",
        kernel=block_kernel,
        signature={**logits, **_PARTIALS, "arrived_ptr": "*i32", **_OUT},
        constexprs={**sizes, "FILTERS": is_full, "BLOCK": _BLOCK},
        num_warps=_BLOCK_WARPS,
        has_pdl=True,
    )
    if not is_full:
        return [block]
    return [
        block,
        CompileCase(
            name=f"sample.row-{name}",
            kernel=row_kernel,
            signature={
                **logits,
                **_PARTIALS,
                "list_ptr": "*i32",
                "candidate_ptr": "*fp32",
                "candidate_id_ptr": "*i32",
                **_OUT,
            },
            constexprs={**sizes, **shape.row_sizes()},
            num_warps=_ROW_WARPS,
            has_pdl=True,
        ),
    ]


def _controls_cases(spec: SampleSpec) -> list[CompileCase]:
    shape = _Shape(spec)
    rows = {"slots": "*i64", "positions": "*i64", "table_ptr": "*i64", "recent_ptr": "*i32"}
    bans = {"bans_ptr": "*i32", "is_banned_ptr": "*i32"}
    return [
        CompileCase(
            name="sample.enter",
            kernel=enter_kernel,
            signature={"row_ptr": "*i32", "packed_ptr": "*i32", "num_ids": "i32"},
            constexprs={"BLOCK": _ENTERED},
        ),
        CompileCase(
            name="sample.ban",
            kernel=ban_kernel,
            signature={**rows, **bans, "words_ptr": "*i32", "masks": "*i32", "mask_rows": "*i64"},
            constexprs={**shape.ban_sizes(spec), "HAS_MASKS": True},
            num_warps=8,
        ),
        CompileCase(
            name="sample.process",
            kernel=process_kernel,
            signature={
                "rows": "*i64",
                "logits_ptr": "*bf16",
                **_LOGITS,
                "packed_ptr": "*i32",
                "threshold_ptr": "*fp32",
                "processed_ptr": "*fp32",
            },
            constexprs={**shape.sizes(True), "BLOCK": _BLOCK},
            num_warps=_BLOCK_WARPS,
        ),
    ]
