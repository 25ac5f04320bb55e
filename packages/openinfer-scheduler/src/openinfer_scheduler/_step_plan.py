"""The plan that a scheduler gives to an executor, and the result that it gets back.

A plan carries rows, upper bounds on new tokens and the blocks for them, but no exact positions:
those are in the executor's tables, and `Scheduler.apply` learns them from the result.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from openinfer_contract import GenerateRequest, TokenLogprobs
from openinfer_kv_cache import BlockCopy

TokenIds = npt.NDArray[np.uint32]
BlockIds = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStart:
    """A sequence takes a slot: it was admitted, for the first time or after a preemption."""

    slot: int
    """Index in the executor's tables, in `[0, max_num_seqs)`. If it was used before, this plan's
    `ends` or those of an earlier plan list it."""
    request: GenerateRequest
    token_ids: TokenIds
    """[num_known] The prompt and every output token settled so far."""
    num_output_tokens: int
    """Number of output tokens at the end of `token_ids`, including the request's output prefix."""
    num_cached_tokens: int
    """Leading tokens whose cache entries exist; the first forward starts at this position."""
    block_ids: tuple[BlockIds, ...]
    """For each cache group, the blocks of the cached tokens in order; the last block ends at
    `num_cached_tokens`. A window group lacks the leading blocks, which no later token reads. A
    state group has none: its row is the first entry of `PlannedRow.new_block_ids`."""
    seed: int
    """The request's seed, or the one drawn for it; unchanged after a preemption."""
    adapter_slot: int | None = None
    """Slot of the request's adapter in the executor's adapter table, if `max_adapters` is set. The
    adapter keeps it while a sequence with that adapter runs. The plan after the last use may give
    it to another adapter, since steps run in order. None: no adapter, or no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """The tokens that one step forwards for one sequence."""

    slot: int
    num_tokens: int
    """Number of tokens to forward, at least 1, at the positions after those forwarded or cached
    before. For a decode row an upper bound: the token sampled last and up to `num_drafts` tokens
    that the executor drafts."""
    token_ids: TokenIds | None
    """[num_tokens] Token ids to forward: a slice of `RowStart.token_ids`, or the token sampled last
    and the output tokens forced after it. None for a decode row, which forwards the token that this
    slot sampled last, and drafts after it; the host may not have that token yet."""
    new_block_ids: tuple[BlockIds, ...]
    """For each cache group, the blocks to append to the row's block table before the forward. Often
    empty, sometimes more than this step needs."""
    is_sampled: bool
    """Whether a token is sampled after the last position; false for a chunk that does not reach the
    end of the known tokens."""
    needs_mask: bool = False
    """Whether sampling waits for a mask from the host because the request has a grammar. Such a row
    has no drafts: their masks would depend on tokens that the host has not seen."""

    @property
    def num_drafts(self) -> int:
        """Upper bound on drafted tokens that this step verifies."""
        return self.num_tokens - 1 if self.token_ids is None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step. An executor runs steps in the order of their ids, on one stream."""

    step_id: int
    ends: tuple[int, ...]
    """Slots whose sequences are gone; `starts` of this plan may use them again."""
    starts: tuple[RowStart, ...]
    rows: tuple[PlannedRow, ...]
    """Decode rows first. Empty if the plan only announces ends."""
    copies_before: tuple[BlockCopy, ...] = ()
    """State blocks to copy before the forward, for rows that start after a prefix hit. A row that
    starts at position 0 has a zero state."""
    copies_after: tuple[BlockCopy, ...] = ()
    """State blocks to copy after the forward, so that later requests can hit the copies."""

    @property
    def num_tokens(self) -> int:
        """Number of tokens that all rows forward."""
        return sum(row.num_tokens for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The tokens that a step sampled, in the order of its plan's rows."""

    step_id: int
    counts: npt.NDArray[np.int32]
    """[num_rows] Number of tokens settled in each row: 1, or 0 if `is_sampled` is false or the row
    failed; with drafts, 1 plus the number of accepted drafts. The next step continues after the
    settled tokens and forwards positions of rejected drafts again. Rows of sequences that ended in
    the meantime are reported like all others."""
    token_ids: TokenIds
    """[counts.sum()] Sampled ids, row after row."""
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    """Logprobs of `counts[row]` positions, by row index, for rows whose request wants them."""
    prompt_logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    """Logprobs of prompt tokens, by row index. Each forwarded position scores the token after it,
    from `max(first forwarded position + 1, PromptLogprobOptions.start)` to the end of the prompt at
    most. A row that is recomputed after a preemption reports them again; `apply` drops those."""
    failed: Mapping[int, str] = field(default_factory=dict)
    """Messages of rows that could not be sampled (such as NaN logits), by row index."""
    exhausted: frozenset[int] = frozenset()
    """Rows in `failed` that had no token left to sample. If the request itself bans tokens, the
    request is at fault, else the model."""
