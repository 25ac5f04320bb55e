"""How a step's result changes its sequences: new tokens, stops, failures."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import Struct

from openinfer_contract import (
    End,
    PromptLogprobs,
    TokenEvent,
    TokenLogprobs,
    banning_fields,
    no_token_left_message,
)
from openinfer_scheduler._step_plan import PlannedRow, StepResult
from openinfer_scheduler.settle._prompt_logprobs import first_logprobs, owed_prompt_logprobs
from openinfer_scheduler.state._scheduler_state import SchedulerState, StepInFlight
from openinfer_scheduler.state._sequence import BYTES_PER_ID, SlotTenancy

Effects = list[tuple[str, TokenEvent]]
"""(request id, event) in order; at most one entry for each request and call."""


def own_faults(step: StepInFlight, result: StepResult) -> dict[int, tuple[str, ...]]:
    """Returns failed rows whose request itself bans every token, with the fields that do so."""
    fields = {row: banning_fields(step.tenancies[row].sequence.request) for row in result.exhausted}
    return {row: names for row, names in fields.items() if names}


def settle(
    state: SchedulerState,
    step: StepInFlight,
    result: StepResult,
    now: float,
    faults: Mapping[int, tuple[str, ...]],
) -> Effects:
    """Applies the result of a step that the cache has completed.

    Args:
        state: changed.
        step: the step.
        result: the step's result.
        now: monotonic seconds.
        faults: the `own_faults` of the result.

    Raises:
        ValueError: the result does not fit the plan.
    """
    num_rows, num_tokens, num_decode = len(step.tenancies), len(result.token_ids), step.num_decode
    counts = result.counts.tolist()
    if len(counts) != num_rows or sum(counts) != num_tokens:
        raise ValueError(
            f"step {result.step_id} has {num_rows} rows; the result has {len(counts)} "
            f"counts that add up to {sum(counts)}, and {num_tokens} tokens"
        )
    settlement = _Settlement(state, step, result, now, faults)
    columns = _columns(num_tokens).unpack(result.token_ids.astype("<u4", copy=False).tobytes())
    first = 0
    if (
        not (result.failed or result.logprobs or state.config.num_draft_tokens)
        and counts[:num_decode].count(1) == num_decode
    ):
        settlement.settle_decode_rows(columns)
        first = num_decode
    begin = first
    for index in range(first, num_rows):
        end = begin + counts[index]
        settlement.settle_row(index, b"".join(columns[begin:end]))
        begin = end
    state.counters.num_output_tokens += num_tokens - settlement.num_dropped
    state.requeue_settled(step.plan.step_id)
    return settlement.effects


@lru_cache(maxsize=1024)
def _columns(num_tokens: int) -> Struct:
    """Returns the format that splits a u32 column into one bytes object per id."""
    return Struct("4s" * num_tokens)


class _Settlement:
    """Applies one result, row by row."""

    __slots__ = ("_faults", "_now", "_result", "_state", "_step", "effects", "num_dropped")

    def __init__(
        self,
        state: SchedulerState,
        step: StepInFlight,
        result: StepResult,
        now: float,
        faults: Mapping[int, tuple[str, ...]],
    ) -> None:
        self._state = state
        self._step = step
        self._result = result
        self._now = now
        self._faults = faults
        self.effects: Effects = []
        self.num_dropped = 0
        """Number of dropped tokens: those after an end, and those of sequences that had ended
        before."""

    def settle_decode_rows(self, columns: Sequence[bytes]) -> None:
        """Settles the decode rows if each has one token, no logprobs and no failure."""
        step_id, num_decode = self._step.plan.step_id, self._step.num_decode
        tenancies = self._step.tenancies[:num_decode]
        # List comprehensions for all rows take half the time of building each event in the loop.
        events = [TokenEvent(token_ids=ids) for ids in columns[:num_decode]]
        effects = [
            (tenancy.request_id, event) for tenancy, event in zip(tenancies, events, strict=True)
        ]
        dropped = set()
        token_ids = self._result.token_ids[:num_decode].tolist()
        for index, (tenancy, ids, token_id) in enumerate(
            zip(tenancies, columns[:num_decode], token_ids, strict=True)
        ):
            tokens = tenancy.tokens
            # `next_check` is 0 before a tenancy's first token and after its end.
            if len(tokens) < tenancy.next_check and token_id not in tenancy.stop_ids:
                tokens += ids
            elif tenancy.is_settling and step_id > tenancy.ignore_samples_until_step:
                event = self._settle_tokens(tenancy, ids, None, None)
                assert event is not None, "there is a token to emit"
                effects[index] = tenancy.request_id, event
            else:
                dropped.add(index)
        if dropped:
            self.num_dropped += len(dropped)
            effects = [effect for i, effect in enumerate(effects) if i not in dropped]
        self.effects = effects

    def settle_row(self, index: int, ids: bytes) -> None:
        """Settles one row with any number of tokens."""
        tenancy, row = self._step.tenancies[index], self._step.plan.rows[index]
        num_tokens = len(ids) // BYTES_PER_ID
        if not tenancy.is_settling or self._step.plan.step_id <= tenancy.ignore_samples_until_step:
            self.num_dropped += num_tokens
            return
        sequence, result = tenancy.sequence, self._result
        message = result.failed.get(index)
        if message is not None:
            fields = self._faults.get(index)
            if fields:
                message = no_token_left_message(fields)
            field = fields[0] if fields else ""
            end = self._state.fail(sequence, message, is_retryable=False, field=field)
            self.effects.append(self._state.end_event(sequence, end))
            return
        self._check_count(index, row, num_tokens)
        if row.token_ids is None:
            tenancy.num_planned -= row.num_tokens - num_tokens
        prompt_logprobs: PromptLogprobs | None = None
        # No position is noted once all prompt logprobs are delivered, even if a preempted prompt
        # is computed and scored again.
        position = self._step.prompt_positions.get(index)
        if position is not None and index in result.prompt_logprobs:
            prompt_logprobs = owed_prompt_logprobs(
                sequence, position, result.prompt_logprobs[index]
            )
        event = self._settle_tokens(tenancy, ids, prompt_logprobs, result.logprobs.get(index))
        if event is not None:
            self.effects.append((sequence.request_id, event))

    def _check_count(self, index: int, row: PlannedRow, num_tokens: int) -> None:
        most = 1 + row.num_drafts if row.is_sampled else 0
        if not row.is_sampled <= num_tokens <= most:
            raise ValueError(
                f"row {index} of step {self._step.plan.step_id} has {num_tokens} tokens, "
                f"is_sampled is {row.is_sampled}, with {row.num_drafts} drafts"
            )

    def _settle_tokens(
        self,
        tenancy: SlotTenancy,
        ids: bytes,
        prompt_logprobs: PromptLogprobs | None,
        logprobs: TokenLogprobs | None,
    ) -> TokenEvent | None:
        """Settles a row's tokens; returns its event, or None if there is nothing to emit."""
        sequence = tenancy.sequence
        scheduled = self._state.announce(sequence)
        end: End | None = None
        if ids:
            if sequence.first_token_at is None:
                sequence.first_token_at = self._now
            tenancy.num_unforwarded = 0
            num_tokens = len(ids) // BYTES_PER_ID
            num_taken, end = self._append_tokens(tenancy, ids)
            if num_taken < num_tokens:
                self.num_dropped += num_tokens - num_taken
                ids = ids[: BYTES_PER_ID * num_taken]
                logprobs = None if logprobs is None else first_logprobs(logprobs, num_taken)
        elif scheduled is None and prompt_logprobs is None:
            return None
        return TokenEvent(
            scheduled=scheduled,
            prompt_logprobs=prompt_logprobs,
            token_ids=ids,
            logprobs=logprobs,
            end=end,
        )

    def _append_tokens(self, tenancy: SlotTenancy, ids: bytes) -> tuple[int, End | None]:
        """Appends tokens up to one that ends the request; returns their number and the end."""
        state, sequence = self._state, tenancy.sequence
        num_taken = 0
        for begin in range(0, len(ids), BYTES_PER_ID):
            column = ids[begin : begin + BYTES_PER_ID]
            token_id = int.from_bytes(column, "little")
            num_taken += 1
            is_checked = len(sequence.tokens) >= tenancy.next_check
            sequence.tokens += column
            num_known = sequence.num_known_tokens
            if is_checked and tenancy.is_open:
                tenancy.settle_blocks()
            if token_id in sequence.stop_ids and num_known > sequence.stop_ids_from:
                end = state.finish(sequence, "stop", self._now, stop_token_id=token_id)
                return num_taken, end
            if num_known >= sequence.max_total:
                return num_taken, state.finish(sequence, "length", self._now)
        return num_taken, None
