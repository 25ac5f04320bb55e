"""Executor of plans that remembers the content of every block."""

import random
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from openinfer_contract import GenerateRequest
from openinfer_kv_cache import CacheGroup
from openinfer_scheduler import PlannedRow, RowStart, SchedulerConfig, StepPlan, StepResult
from openinfer_testing.content._model import (
    VOCAB_SIZE,
    Entries,
    adapter_uid,
    banned_ids,
    next_token,
    with_entry,
)
from openinfer_testing.content._rows import OtherGroups, Row, row_of


@dataclass
class _Launched:
    plan: StepPlan
    blocks: set[int] = field(default_factory=set)


class ContentExecutor:
    """Runs plans on recorded block contents. A step runs in `wait`, the latest time allowed.

    Every forward reads all earlier entries through the row's block table and writes its own. A
    wrong, stale or too early reused block therefore changes the tokens. Rows share memory as on a
    device: all rows of a step read the entries from before the step. A failed step overwrites
    everything it should have written with random entries. If a row finds a wrong entry in a window,
    a state or a second full group, it continues with wrong entries.

    Args:
        config: Configuration of the scheduler that makes the plans.
        groups: Cache groups of that scheduler. The first must be a full one.
        num_blocks: Number of blocks of the first group.
        rng: Source of failures and drafts.
        fail_step: Share of the steps that fail.
        fail_row: Share of the sampled rows that fail.

    Attributes:
        memory: [num_blocks, tokens_per_block] entries of the first group.
        others: Content of the other groups.
        seeds: Seed with which each request was started, by request id.
        slots: Id of the request in each slot after the newest plan.
        fail_step: Share of the steps that fail. May be changed between steps.
        num_drafted: Number of drafts verified so far.
        num_accepted: Number of drafts accepted so far.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        groups: tuple[CacheGroup, ...],
        *,
        num_blocks: int,
        rng: random.Random | None = None,
        fail_step: float = 0.0,
        fail_row: float = 0.0,
    ) -> None:
        assert groups[0].kind == "full", (
            "the first group must be a full one: its entries define the tokens"
        )
        self.memory = np.zeros((num_blocks, groups[0].tokens_per_block), np.uint64)
        self.others = OtherGroups(groups)
        self.seeds: dict[str, int] = {}
        self.slots: dict[int, str] = {}
        self.num_drafted = self.num_accepted = 0
        self._config = config
        self._groups = groups
        self._tokens_per_block = groups[0].tokens_per_block
        self._rng = rng or random.Random(0)
        self.fail_step = fail_step
        self._fail_row = fail_row
        self._rows: dict[int, Row] = {}
        self._launched: deque[_Launched] = deque()
        self._last_step = 0
        self._tables: dict[int, list[int]] = {}
        self._requests: dict[int, GenerateRequest] = {}
        self._adapter_places: dict[int, bytes] = {}

    def launch(self, plan: StepPlan) -> None:
        """Checks a plan against earlier plans and queues it."""
        config = self._config
        assert plan.step_id > self._last_step
        self._last_step = plan.step_id
        assert len(self._launched) < config.depth
        assert plan.num_tokens <= config.max_num_batched_tokens
        assert len({row.slot for row in plan.rows}) == len(plan.rows) <= config.max_num_seqs
        assert len(set(plan.ends)) == len(plan.ends)
        kinds = [row.token_ids is not None for row in plan.rows]
        assert kinds == sorted(kinds), "decode rows come first"
        for slot in plan.ends:
            del self.slots[slot], self._tables[slot]
        for start in plan.starts:
            self._note_start(start)
        step = _Launched(plan)
        in_flight = set[int]().union(*(other.blocks for other in self._launched))
        for row in plan.rows:
            new = row.new_block_ids[0].tolist()
            assert not in_flight.intersection(new), "a block in flight was handed out again"
            self._tables[row.slot] += new
            step.blocks.update(self._tables[row.slot])
            self._check_row(row)
        self._check_adapters(plan)
        self._launched.append(step)

    def wait(self, step_id: int) -> StepResult | None:
        """Returns the result of the oldest step, or None if the step failed."""
        plan = self._launched.popleft().plan
        assert plan.step_id == step_id
        for slot in plan.ends:
            del self._rows[slot]
        for start in plan.starts:
            assert start.slot not in self._rows
            self._rows[start.slot] = row_of(start, self._groups)
        for row in plan.rows:
            self._rows[row.slot].append(row.new_block_ids)
        self.others.restore(plan.copies_before)
        result = None
        if self._rng.random() < self.fail_step:
            self._scribble(plan)
        else:
            result = self._run(plan)
        self.others.checkpoint(plan.copies_after)
        return result

    def _note_start(self, start: RowStart) -> None:
        assert start.slot not in self.slots
        assert 0 <= start.slot < self._config.max_num_seqs
        request = self._requests[start.slot] = start.request
        self._place_adapter(start)
        self.slots[start.slot] = request.request_id
        self._tables[start.slot] = start.block_ids[0].tolist()
        known = self.seeds.setdefault(request.request_id, start.seed)
        assert known == start.seed, "a request keeps its seed"
        assert start.num_cached_tokens < len(start.token_ids)
        assert start.num_cached_tokens == len(start.block_ids[0]) * self._tokens_per_block

    def _check_row(self, row: PlannedRow) -> None:
        """Checks that drafts and masks in a plan follow from the request and the configuration."""
        request = self._requests[row.slot]
        assert row.needs_mask == (row.is_sampled and request.grammar is not None)
        assert 0 <= row.num_drafts <= self._config.num_draft_tokens
        if request.speculate is False or request.grammar is not None:
            assert row.num_drafts == 0
        if self._config.role == "prefill":
            assert row.token_ids is not None, "an engine that only prefills decodes nothing"

    def _place_adapter(self, start: RowStart) -> None:
        """Loads an adapter into the slot that the plan names, and replaces the adapter in it."""
        adapter, place = start.request.adapter, start.adapter_slot
        if adapter is None or self._config.max_adapters is None:
            assert place is None
            return
        assert place is not None
        assert 0 <= place < self._config.max_adapters
        self._adapter_places[place] = adapter.uid

    def _check_adapters(self, plan: StepPlan) -> None:
        requests = [self._requests[row.slot] for row in plan.rows]
        uids = {request.adapter.uid for request in requests if request.adapter is not None}
        if self._config.max_adapters is not None:
            assert len(uids) <= self._config.max_adapters
            assert uids <= set(self._adapter_places.values()), "an adapter in use was replaced"

    def _write(self, row: Row, entries: Entries, num_right: int) -> None:
        """Writes entries from `row.num_entries` on, through the block tables."""
        start, size = row.num_entries, self._tokens_per_block
        assert len(entries) <= len(row.tables[0]) * size, "a position without a block"
        positions = np.arange(start, len(entries))
        blocks = np.array(row.tables[0], np.int64)[positions // size]
        self.memory[blocks, positions % size] = entries[start:]
        self.others.write(row, start, entries, num_right)

    def _scribble(self, plan: StepPlan) -> None:
        for planned in plan.rows:
            row, num = self._rows[planned.slot], planned.num_tokens
            rubbish = [self._rng.getrandbits(63) for _ in range(row.num_entries + num)]
            self._write(row, np.array(rubbish, np.uint64), row.num_entries + num)
            row.num_entries += num
            row.last_token = self._rng.randrange(VOCAB_SIZE)
            row.num_output += planned.is_sampled

    def _entries(self, row: Row) -> Entries:
        """Returns the entries that the row's forward reads.

        The last one is altered if another group holds a wrong entry.
        """
        blocks = np.array(row.tables[0], np.int64)
        entries: Entries = self.memory[blocks].reshape(-1)[: row.num_entries]
        if not self.others.is_right(row, entries):
            entries[-1] ^= np.uint64(1)
        return entries

    def _draft(self, row: Row, entries: Entries, num_drafts: int) -> list[int]:
        """Returns drafts: each is the right token with probability 0.7."""
        drafts: list[int] = []
        for _ in range(num_drafts):
            banned = banned_ids(row.request, row.num_output + len(drafts))
            right = next_token(entries, row.seed, banned)
            drafts.append(right if self._rng.random() < 0.7 else (right + 1) % VOCAB_SIZE)
            entries = with_entry(entries, drafts[-1], adapter_uid(row.request))
        return drafts

    def _accept(self, row: Row, entries: Entries, start: int, drafts: list[int]) -> list[int]:
        """Returns the tokens sampled at verified positions: the right drafts and one more."""
        tokens: list[int] = []
        for offset in range(len(drafts) + 1):
            banned = banned_ids(row.request, row.num_output + len(tokens))
            tokens.append(next_token(entries[: start + offset], row.seed, banned))
            if offset == len(drafts) or tokens[-1] != drafts[offset]:
                break
        return tokens

    def _run(self, plan: StepPlan) -> StepResult:
        before = [self._entries(self._rows[row.slot]) for row in plan.rows]
        counts: list[int] = []
        token_ids: list[int] = []
        failed: dict[int, str] = {}
        for index, planned in enumerate(plan.rows):
            sampled = self._forward(planned, before[index])
            if planned.is_sampled and self._rng.random() < self._fail_row:
                failed[index] = "NaN logits"
                sampled = []
            counts.append(len(sampled))
            token_ids += sampled
        return StepResult(
            step_id=plan.step_id,
            counts=np.array(counts, np.int32),
            token_ids=np.array(token_ids, np.uint32),
            failed=failed,
        )

    def _forward(self, planned: PlannedRow, entries: Entries) -> list[int]:
        """Writes the entries of one row and returns the ids that it samples."""
        row = self._rows[planned.slot]
        uid = adapter_uid(row.request)
        drafts: list[int] = []
        if planned.token_ids is None:
            assert row.last_token is not None
            first = with_entry(entries, row.last_token, uid)
            drafts = self._draft(row, first, planned.num_drafts)
            ids = [row.last_token, *drafts]
        else:
            ids = planned.token_ids.tolist()
            known = row.given[row.num_entries : row.num_entries + len(ids)]
            assert ids[: len(known)] == known, (
                "a prefill must repeat the ids that the row was started with"
            )
        assert len(ids) == planned.num_tokens
        for token_id in ids:
            entries = with_entry(entries, token_id, uid)
        num_sure = len(entries) - len(drafts)
        if not planned.is_sampled:
            self._write(row, entries, num_sure)
            row.num_entries = num_sure
            return []
        if planned.token_ids is not None:
            assert num_sure >= len(row.given)
            row.num_output = num_sure - row.num_before
        sampled = self._accept(row, entries, num_sure, drafts)
        self.num_drafted += len(drafts)
        self.num_accepted += len(sampled) - 1
        num_right = num_sure + len(sampled) - 1
        self._write(row, entries, num_right)
        row.num_entries = num_right
        row.last_token = sampled[-1]
        row.num_output += len(sampled)
        return sampled
