"""What a scheduler hands to an executor, and what it gets back.

A plan carries rows, upper bounds on new tokens and the blocks for them, never exact positions:
the executor's rows hold those, and `Scheduler.apply` settles them.
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
    """A sequence takes a slot: admitted, or back after a preemption."""

    slot: int
    """Row of the executor's tables, in `[0, max_num_seqs)`. Free since an earlier plan's `ends`."""
    request: GenerateRequest
    token_ids: TokenIds
    """[num_known]: the prompt and every output token settled so far."""
    num_output_tokens: int
    """How many of `token_ids`, at the end, are output; the request's output prefix included."""
    num_cached_tokens: int
    """Leading tokens whose cache entries exist already; the first forward starts there."""
    block_ids: tuple[BlockIds, ...]
    """Per cache group: the blocks of those tokens, in order, the last one ending at
    `num_cached_tokens`. A window group lacks the leading ones, which no later token sees; a state
    group has none: its row is the first of `PlannedRow.new_block_ids`."""
    seed: int
    """The request's seed, or the one the engine drew for it; the same after a preemption."""
    adapter_slot: int | None = None
    """Where `max_adapters` is set: the place of the request's adapter among so many, from this
    step on for as long as a row with that adapter runs. A place may change hands in the plan after
    the one that still used it: steps run in order. None: no adapter, or no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """One sequence's share of a step."""

    slot: int
    num_tokens: int
    """Tokens forwarded, >= 1; they follow the positions forwarded or cached before. Of a decode
    row at most so many: the token sampled last and up to `num_drafts` that the executor drafts."""
    token_ids: TokenIds | None
    """[num_tokens] known ids to forward: a slice of the start's `token_ids`, or output that was
    forced since, behind the token sampled last; or None, a decode row: forward the token this row
    sampled last, which may not have reached the host yet, and drafts after it."""
    new_block_ids: tuple[BlockIds, ...]
    """Per cache group: blocks to append to the row's block table before the forward. Often none,
    sometimes more than this step needs."""
    is_sampled: bool
    """Whether a token is sampled after the row's last position; false for chunks before the end
    of the known tokens."""
    needs_mask: bool = False
    """Whether the request has a grammar, so that sampling waits for a mask from the host. Such a
    row has no drafts: their masks would hang on tokens that the host has not seen."""

    @property
    def num_drafts(self) -> int:
        """Drafted tokens that this step may verify, beside the one it samples anyway."""
        return self.num_tokens - 1 if self.token_ids is None else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step. Steps run in the order of their ids, on one stream."""

    step_id: int
    ends: tuple[int, ...]
    """Slots whose sequences are gone; they may be reused by `starts` of this same plan."""
    starts: tuple[RowStart, ...]
    rows: tuple[PlannedRow, ...]
    """Decode rows first. May be empty: the plan then only ends rows."""
    copies_before: tuple[BlockCopy, ...] = ()
    """Of state groups: blocks to copy before the forward, into rows that begin behind a hit. A row
    that begins at position 0 begins with a zero state."""
    copies_after: tuple[BlockCopy, ...] = ()
    """The same after the forward, from rows to where later requests find their state."""

    @property
    def num_tokens(self) -> int:
        """Tokens forwarded by all rows."""
        return sum(row.num_tokens for row in self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What a step produced, by row of its plan."""

    step_id: int
    counts: npt.NDArray[np.int32]
    """[num_rows]: tokens settled per row: 1, or 0 where `is_sampled` is false or the row failed; of
    a row with drafts 1 and the drafts that were accepted. The row goes on behind what it settled:
    positions of rejected drafts are forwarded again. Rows of sequences that ended meanwhile are
    reported like any other."""
    token_ids: TokenIds
    """[counts.sum()]."""
    logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    """By row index, for rows whose request wants them; `counts[row]` positions."""
    prompt_logprobs: Mapping[int, TokenLogprobs] = field(default_factory=dict)
    """By row index: of the prompt tokens after each forwarded position, consecutive from
    `max(first forwarded position + 1, PromptLogprobOptions.start)` to the end of the prompt at
    most. A row that is recomputed after a preemption reports them again; `apply` drops those."""
    failed: Mapping[int, str] = field(default_factory=dict)
    """By row index: why a single row could not be sampled (say, NaN logits)."""
    exhausted: frozenset[int] = frozenset()
    """Of `failed`: rows whose every token was ruled out. Where their request rules tokens out it
    has itself to blame, else the model."""
