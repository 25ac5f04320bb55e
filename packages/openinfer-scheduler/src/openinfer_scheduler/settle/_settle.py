"""What a step's result does to its sequences: tokens, stops, ends."""

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
from openinfer_scheduler.plan._steady import SteadyPlan
from openinfer_scheduler.settle._prompt_logprobs import first_logprobs, owed_prompt_logprobs
from openinfer_scheduler.state._prefix_probe import BYTES_PER_ID
from openinfer_scheduler.state._scheduler_state import SchedulerState, StepInFlight
from openinfer_scheduler.state._sequence import Stay

Effects = list[tuple[str, TokenEvent]]
"""(request id, event) in the order they happened; at most one entry a request and call."""


def own_faults(step: StepInFlight, result: StepResult) -> dict[int, tuple[str, ...]]:
    """By failed row: the fields by which its request has ruled every token out itself."""
    stays = step.stays
    fields = {row: banning_fields(stays[row].sequence.request) for row in result.exhausted}
    return {row: names for row, names in fields.items() if names}


def settle(
    state: SchedulerState,
    step: StepInFlight,
    result: StepResult,
    now: float,
    faults: Mapping[int, tuple[str, ...]],
) -> Effects:
    """Applies the result of a step that the cache knows to be complete.

    Args:
        state: changed.
        step: that it is of.
        result: of the step.
        now: monotonic seconds.
        faults: `own_faults` of it.

    Raises:
        ValueError: the result does not fit the plan.
    """
    num_decode, steady = step.num_decode, step.steady
    num_rows, num_tokens = len(step.stays), len(result.token_ids)
    counts = _counts(step, result)
    settling = _Settling(state, step, result, now, faults)
    columns = _columns(num_tokens).unpack(result.token_ids.astype("<u4", copy=False).tobytes())
    first = 0
    is_single = (
        not (result.failed or result.logprobs or state.config.num_draft_tokens)
        and counts[:num_decode].count(1) == num_decode
    )
    if steady is not None and not (is_single and steady.owner.is_current(state.num_changes)):
        # Rows are settled one by one, and the steady ones do not hear which of them were due: they
        # are found anew.
        state.num_changes += 1
        steady = None
    if is_single:
        if steady is not None:
            settling.take_steady(steady, columns)
        else:
            settling.take_single(columns)
        first = num_decode
    begin = first
    for index in range(first, num_rows):
        end = begin + counts[index]
        settling.take_row(index, b"".join(columns[begin:end]))
        begin = end
    state.counters.num_output_tokens += num_tokens - settling.num_dropped
    state.requeue_settled(step.plan.step_id)
    return settling.effects


def _counts(step: StepInFlight, result: StepResult) -> list[int]:
    """By row, how many tokens it has settled."""
    num_rows, num_tokens, steady = len(step.stays), len(result.token_ids), step.steady
    if steady is not None and num_rows == step.num_decode and steady.is_one_each(result.counts):
        counts = [1] * num_rows
    else:
        counts = result.counts.tolist()
    if len(counts) != num_rows or sum(counts) != num_tokens:
        raise ValueError(
            f"step {result.step_id} has {num_rows} rows; the result has {len(counts)} "
            f"counts that add up to {sum(counts)}, and {num_tokens} tokens"
        )
    return counts


@lru_cache(maxsize=1024)
def _columns(num_tokens: int) -> Struct:
    """Takes a column of u32 apart, id by id."""
    return Struct("4s" * num_tokens)


class _Settling:
    """One result on its way into the state."""

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
        """Tokens of sequences that had ended, and tokens behind an end."""

    def take_steady(self, steady: SteadyPlan, columns: Sequence[bytes]) -> None:
        """Settles decode rows that nothing but starts and ends has touched since their plan."""
        step = self._step
        events = [TokenEvent(token_ids=ids) for ids in columns[: step.num_decode]]
        effects = list(zip(steady.request_ids, events, strict=True))
        dropped = []
        for row in sorted(steady.take_tokens(columns, self._result.token_ids, step.closed)):
            stay = steady.stays[row]
            if not stay.is_settling:  # none is surplus: what forces tokens ends steadiness
                dropped.append(row)
                continue
            event = self._settled(stay, columns[row], None, None)
            assert event is not None, "there is a token to tell of"
            effects[row] = stay.request_id, event
            if stay.is_open:
                steady.owner.looked_at(stay, steady.number)
        for row in reversed(dropped):
            del effects[row]
        self.num_dropped += len(dropped)
        self.effects = effects

    def take_single(self, columns: Sequence[bytes]) -> None:
        """Settles the decode rows, each with one token and nothing beside it."""
        stays = self._step.stays[: self._step.num_decode]
        # Column by column: half the time of a loop over rows.
        events = [TokenEvent(token_ids=ids) for ids in columns[: len(stays)]]
        effects = list(zip([stay.request_id for stay in stays], events, strict=True))
        dropped = set()
        step_id = self._step.plan.step_id
        token_ids = self._result.token_ids[: len(stays)].tolist()
        for index, (stay, ids, token_id) in enumerate(zip(stays, columns, token_ids, strict=False)):
            tokens = stay.tokens
            # `next_check` is 0 before a stay's first token and after its end.
            if len(tokens) < stay.next_check and token_id not in stay.stop_ids:
                tokens += ids
            elif stay.is_settling and step_id > stay.surplus_until:
                event = self._settled(stay, ids, None, None)
                assert event is not None, "there is a token to tell of"
                effects[index] = stay.request_id, event
            else:
                dropped.add(index)
        if dropped:
            self.num_dropped += len(dropped)
            effects = [effect for i, effect in enumerate(effects) if i not in dropped]
        self.effects = effects

    def take_row(self, index: int, ids: bytes) -> None:
        """Settles one row."""
        stay, row = self._step.stays[index], self._step.plan.rows[index]
        if not stay.is_settling or self._step.plan.step_id <= stay.surplus_until:
            self.num_dropped += len(ids) // BYTES_PER_ID
            return
        sequence, result = stay.sequence, self._result
        message = result.failed.get(index)
        if message is not None:
            fields = self._faults.get(index)
            if fields:
                message = no_token_left_message(fields)
            field = fields[0] if fields else ""
            end = self._state.fail(sequence, message, is_retryable=False, field=field)
            self.effects.append(self._state.event(sequence, end))
            return
        num_tokens = len(ids) // BYTES_PER_ID
        self._check_count(index, row, num_tokens)
        if row.token_ids is None:
            stay.num_planned -= row.num_tokens - num_tokens
        prompt_logprobs: PromptLogprobs | None = None
        # There is no position once all have been told; a recomputed prompt is scored again.
        position = self._step.prompt_positions.get(index)
        if position is not None and index in result.prompt_logprobs:
            prompt_logprobs = owed_prompt_logprobs(
                sequence, position, result.prompt_logprobs[index]
            )
        event = self._settled(stay, ids, prompt_logprobs, result.logprobs.get(index))
        if event is not None:
            self.effects.append((sequence.request_id, event))

    def _check_count(self, index: int, row: PlannedRow, num_tokens: int) -> None:
        most = 1 + row.num_drafts if row.is_sampled else 0
        if not row.is_sampled <= num_tokens <= most:
            raise ValueError(
                f"row {index} of step {self._step.plan.step_id} has {num_tokens} tokens, "
                f"is_sampled is {row.is_sampled}, with {row.num_drafts} drafts"
            )

    def _settled(
        self,
        stay: Stay,
        ids: bytes,
        prompt_logprobs: PromptLogprobs | None,
        logprobs: TokenLogprobs | None,
    ) -> TokenEvent | None:
        """What a row's tokens did; None where there is nothing to tell."""
        sequence = stay.sequence
        scheduled = self._state.announce(sequence)
        end: End | None = None
        if ids:
            if sequence.first_token_at is None:
                sequence.first_token_at = self._now
            stay.num_unforwarded = 0
            num_tokens = len(ids) // BYTES_PER_ID
            num_taken, end = self._take_tokens(stay, ids)
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

    def _take_tokens(self, stay: Stay, ids: bytes) -> tuple[int, End | None]:
        """Appends sampled tokens up to the one that ends the request: how many, and the end."""
        state, sequence = self._state, stay.sequence
        num_taken = 0
        for begin in range(0, len(ids), BYTES_PER_ID):
            column = ids[begin : begin + BYTES_PER_ID]
            token_id = int.from_bytes(column, "little")
            num_taken += 1
            is_checked = len(sequence.tokens) >= stay.next_check
            sequence.tokens += column
            num_known = sequence.num_known_tokens
            if is_checked and stay.is_open:
                stay.settle_blocks()
            if token_id in sequence.stop_ids and num_known > sequence.stop_from:
                end = state.finish(sequence, "stop", self._now, stop_token_id=token_id)
                return num_taken, end
            if num_known >= sequence.max_total:
                return num_taken, state.finish(sequence, "length", self._now)
        return num_taken, None
