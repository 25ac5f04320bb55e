"""Back end `triton` of sample: over blocks of all rows at once, without a sort or a host read.

1. `mask_kernel`, if rows have min_tokens, bad words or a grammar: writes a bit for each id.
2. `block_kernel`, over rows and blocks of the vocabulary: the largest score, the best perturbed
   score, the sum of exponentials, and the largest score of each group of ids. If no row filters,
   the last program of a row merges its blocks and writes the token, and the step is done.
3. `row_kernel`, one program per row: merges the blocks, and filters if the row has filters.
4. `process_kernel`, if processed scores are wanted.

`write_row_kernel` writes a row's bias or counts before its first step.

**Filters without a sort.** The k-th largest group maximum is at most the k-th largest score. So the
scores from it on contain all that top-k keeps, and they are few. They are gathered, and bisection
over the bits of a float finds the exact thresholds among them. A row without a small k draws from
all tokens that min-p keeps, then checks the winner: it is in the nucleus if the probability above
it is below top_p. If not, no token up to its score is in the nucleus, and the best perturbed token
above it is tried next. Either way the result is the best perturbed score among the kept tokens,
which is the definition.

Groups with too low a maximum are never read again. Sums have the same order in every batch.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton

from openinfer_kernels.gpu._compile_case import CompileCase
from openinfer_kernels.gpu._family import tuned_for
from openinfer_kernels.gpu._support import TRITON_DTYPES, launches_dependents, why_not_triton
from openinfer_kernels.memory._upload import upload
from openinfer_kernels.ops.sample import (
    Drawn,
    Indices,
    Needs,
    Sample,
    SampleRows,
    SampleSpec,
    SampleState,
)
from openinfer_kernels.ops.sample._triton_kernels import (
    block_kernel,
    mask_kernel,
    process_kernel,
    row_kernel,
    write_row_kernel,
)
from openinfer_kernels.ops.sample._tuning import MAX_VOCAB_SIZE, SIZES, SampleShape


def supports(spec: SampleSpec, device: torch.device) -> str | None:
    """Returns None if the kernels run this spec on this device, else the reason."""
    if spec.vocab_size > MAX_VOCAB_SIZE:
        return f"a vocabulary has at most {MAX_VOCAB_SIZE} ids, got {spec.vocab_size}"
    return why_not_triton(torch.float32, device)


def plan(spec: SampleSpec, state: SampleState, device: torch.device | str) -> Sample:
    """Binds the kernels to a spec and its tables."""
    return _TritonSample(spec, state, torch.device(device))


class _TritonSample:
    is_capturable = True

    def __init__(self, spec: SampleSpec, state: SampleState, device: torch.device) -> None:
        self._state = state
        self._sizes = sizes = tuned_for(SIZES, device)
        self._shape = shape = SampleShape(spec, sizes)
        self._score_args = {each: shape.scores(each) for each in (False, True)}
        self._block_args, self._row_args = shape.blocks(), shape.rows()
        self._mask_args = shape.masks()

        def scratch(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros((spec.max_rows, *size), dtype=dtype, device=device)

        self._masks = scratch(shape.mask_words, dtype=torch.int32)
        self._has_mask = scratch(dtype=torch.int32)
        self._partials = (
            scratch(shape.blocks_pad),
            scratch(shape.blocks_pad, dtype=torch.int32),
            *(scratch(shape.blocks_pad) for _ in range(3)),
            scratch(shape.groups_pad),
        )
        self._lists = (
            scratch(shape.groups_pad, dtype=torch.int32),
            scratch(sizes.candidates),
            scratch(sizes.candidates, dtype=torch.int32),
        )
        self._thresholds = scratch()
        # Blocks that have finished, for each row. The kernel resets them to 0. Allocated once,
        # because captured graphs keep the address.
        self._num_finished = scratch(dtype=torch.int32)
        self._has_pdl = launches_dependents(device)
        self._launch = {"launch_pdl": True} if self._has_pdl else {}

    def __call__(self, logits: torch.Tensor, rows: SampleRows) -> Drawn:
        """Draws one token per row; see `Sample`."""
        shape, state, needs = self._shape, self._state, rows.all_needs
        num_rows, device = len(logits), logits.device
        has_controls = bool(needs & Needs.CONTROLS) or rows.masks is not None
        has_filters = bool(needs & Needs.FILTER)
        packed = torch.empty((2, num_rows), dtype=torch.int32, device=device)
        if num_rows == 0:
            return Drawn(packed=packed, processed=None)
        if has_controls:
            self._write_masks(rows, num_rows)
        scores = (
            *(logits, logits.stride(0), rows.slots, rows.positions, state.table),
            *(state.counts, state.bias, self._masks, self._has_mask),
        )
        out = state.recent, state.last_token, packed, self._thresholds
        common = {
            **self._score_args[has_controls], **self._block_args, **self._launch, "PDL":
            self._has_pdl,
        }  # fmt: skip
        blocks: Any = block_kernel
        blocks[(num_rows, shape.num_blocks)](
            *scores, *self._partials, self._num_finished, *out, **common,
            HAS_FILTERS=has_filters, BLOCK=self._sizes.block, num_warps=self._sizes.block_warps,
        )  # fmt: skip
        if has_filters:
            row: Any = row_kernel
            row[(num_rows,)](
                *scores, *self._partials, *self._lists, *out, **common, **self._row_args,
                num_warps=self._sizes.row_warps,
            )  # fmt: skip
        wanted = rows.rows_with(Needs.PROCESSED)
        processed = self.processed(logits, rows, packed, wanted) if len(wanted) else None
        return Drawn(packed=packed, processed=processed)

    def processed(
        self, logits: torch.Tensor, rows: SampleRows, packed: torch.Tensor, index: Indices
    ) -> torch.Tensor:
        """Returns processed scores; see `CapturableSample.processed`."""
        state, shape = self._state, self._shape
        has_controls = bool(rows.all_needs & Needs.CONTROLS) or rows.masks is not None
        device = logits.device
        processed = torch.empty((len(index), shape.vocab_size), dtype=torch.float32, device=device)
        process: Any = process_kernel
        process[(len(index), shape.num_blocks)](
            upload(index, device), logits, logits.stride(0), rows.slots, state.table, state.counts,
            state.bias, self._masks, self._has_mask, packed, self._thresholds, processed,
            **self._score_args[has_controls], BLOCK=self._sizes.block,
            num_warps=self._sizes.block_warps,
        )  # fmt: skip
        return processed

    def write_row(self, row: torch.Tensor, ids: Indices, values: npt.NDArray[Any]) -> None:
        """Writes values of one row; see `Sample.write_row`."""
        # torch's operators for this would keep 25 MB of host memory and more.
        if len(ids) == 0:
            return
        packed = upload(np.stack((ids.astype(np.int32), values.view(np.int32))), row.device)
        kernel: Any = write_row_kernel
        block = self._sizes.written_ids
        grid = (triton.cdiv(len(ids), block),)
        kernel[grid](row.view(torch.int32), packed, len(ids), BLOCK=block, num_warps=4)

    def _write_masks(self, rows: SampleRows, num_rows: int) -> None:
        """Writes the masks of rows that have one."""
        state = self._state
        masks = mask_rows = state.table  # not read without HAS_GRAMMAR
        if rows.masks is not None:
            index, masks = rows.masks
            of_row = np.full(num_rows, -1, np.int64)
            of_row[index] = range(len(index))
            mask_rows = upload(of_row, state.table.device)
        kernel: Any = mask_kernel
        kernel[(num_rows,)](
            rows.slots, rows.positions, state.table, state.bad_words, state.recent,
            masks, mask_rows, self._masks, self._has_mask,
            **self._mask_args, HAS_GRAMMAR=rows.masks is not None,
            num_warps=self._sizes.mask_warps,
        )  # fmt: skip


def compile_cases() -> list[CompileCase]:
    """Returns the kernels for Qwen3's vocabulary: plain in each dtype, and with all controls."""
    spec = SampleSpec(vocab_size=151_936, num_slots=1, max_rows=1)
    plain = [
        case for dtype in TRITON_DTYPES.values() for case in _compile_cases_of(spec, dtype, False)
    ]
    return [*plain, *_compile_cases_of(spec, "bf16", True), *_controls_cases(spec)]


_LOGITS = {"stride": "i32", "slots": "*i64", "table_ptr": "*i64", "counts_ptr": "*i32"}
_LOGITS |= {"bias_ptr": "*fp32", "mask_ptr": "*i32", "has_mask_ptr": "*i32"}
_PARTIALS = {"positions": "*i64", "best_ptr": "*fp32", "best_id_ptr": "*i32"}
_PARTIALS |= {"best_score_ptr": "*fp32", "max_ptr": "*fp32", "sum_ptr": "*fp32"}
_PARTIALS |= {"group_max_ptr": "*fp32"}
_OUT = {"recent_ptr": "*i32", "last_token_ptr": "*i64", "packed_ptr": "*i32"}
_OUT |= {"threshold_ptr": "*fp32"}


def _compile_cases_of(spec: SampleSpec, dtype: str, is_full: bool) -> list[CompileCase]:
    sizes = SIZES["default"]
    shape = SampleShape(spec, sizes)
    name = f"{dtype}-{spec.vocab_size}-{'full' if is_full else 'plain'}"
    logits = {"logits_ptr": f"*{dtype}", **_LOGITS}
    constexprs = {**shape.scores(is_full), **shape.blocks()}
    block = CompileCase(
        name=f"sample.block-{name}",
        kernel=block_kernel,
        signature={**logits, **_PARTIALS, "finished_ptr": "*i32", **_OUT},
        constexprs={**constexprs, "HAS_FILTERS": is_full, "BLOCK": sizes.block},
        num_warps=sizes.block_warps,
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
            constexprs={**constexprs, **shape.rows()},
            num_warps=sizes.row_warps,
            has_pdl=True,
        ),
    ]


def _controls_cases(spec: SampleSpec) -> list[CompileCase]:
    sizes = SIZES["default"]
    shape = SampleShape(spec, sizes)
    rows = {"slots": "*i64", "positions": "*i64", "table_ptr": "*i64", "recent_ptr": "*i32"}
    grammar = {"grammar_masks": "*i32", "grammar_rows": "*i64"}
    masks = {"mask_ptr": "*i32", "has_mask_ptr": "*i32"}
    return [
        CompileCase(
            name="sample.write-row",
            kernel=write_row_kernel,
            signature={"row_ptr": "*i32", "packed_ptr": "*i32", "num_ids": "i32"},
            constexprs={"BLOCK": sizes.written_ids},
        ),
        CompileCase(
            name="sample.mask",
            kernel=mask_kernel,
            signature={**rows, **masks, "words_ptr": "*i32", **grammar},
            constexprs={**shape.masks(), "HAS_GRAMMAR": True},
            num_warps=sizes.mask_warps,
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
            constexprs={**shape.scores(True), "BLOCK": sizes.block},
            num_warps=sizes.block_warps,
        ),
    ]
