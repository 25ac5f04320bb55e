"""The loop's part of a trace: steps and their phases, requests, and counters."""

from collections.abc import Callable
from itertools import takewhile
from typing import Any

from openinfer_contract import Finished, GenerateRequest, Load, TokenEvent
from openinfer_engine.trace._tracer import Details, Tracer
from openinfer_scheduler import StepPlan

COUNTER_INTERVAL_S = 0.01
"""Minimum seconds between two samples of the counters."""

_REQUEST = "request"
_QUEUED = "queued"
_PREFILL = "prefill"
_RECOMPUTE = "recompute"


class LoopTrace:
    """The loop's reports while no trace is being written: every method does nothing."""

    def resume(self) -> None:
        """Marks the beginning of the next phase."""

    def planned(self, plan: StepPlan) -> None:
        """Reports a new plan."""

    def mark(self, step_id: int, phase: str) -> None:
        """Ends a phase of a step and begins the next one."""

    def waited(self, step_id: int) -> None:
        """Reports that a step has run without failing. Its events are not delivered yet."""

    def completed(self, step_id: int, failure: str = "") -> None:
        """Reports that a step is settled and its events are delivered."""

    def arrived(self, request: GenerateRequest, now: float) -> None:
        """Reports a request that was taken in."""

    def ended(self, request_id: str, event: TokenEvent) -> None:
        """Reports a request's last event."""


class StepTrace(LoopTrace):
    """Records what a loop does. Used by the step thread.

    There is one track for each step that may be in flight. A track has a span for every step, from
    its plan to the delivery of its events, and within it the step's phases. A request spans from
    its arrival to its last event. Within it are its states (queued, prefill, decode, and recompute
    after a preemption) and the chunks of its prompt. Requests that arrived before the trace began
    are left out.

    Args:
        tracer: records the events.
        depth: upper bound of steps in flight.
        load: returns the present load.
    """

    def __init__(self, tracer: Tracer, depth: int, load: Callable[[], Load]) -> None:
        self._tracer = tracer
        self._clock = tracer.clock
        self._load = load
        self._tracks = [tracer.track(name) for name in _track_names(depth)]
        self._cursor = self._clock()
        self._steps: dict[int, _Step] = {}
        self._phase_of: dict[str, str] = {}
        """State of every request in the trace, by request id."""
        self._in_slot: dict[int, str] = {}
        self._waited_at = self._cursor
        self._counted_at = self._cursor
        self._count(self._cursor)

    def resume(self) -> None:
        """Marks the beginning of the next phase."""
        self._cursor = self._clock()

    def planned(self, plan: StepPlan) -> None:
        """Begins a step with its plan, and the prefill of the requests that it starts."""
        now = self._clock()
        self._steps[plan.step_id] = _Step(plan, self._cursor, now)
        self._cursor = now
        for start in plan.starts:
            request = start.request
            self._in_slot[start.slot] = request.request_id
            if request.request_id in self._phase_of:
                has_output = start.num_output_tokens > request.num_output_prefix
                args = {"cached_tokens": start.num_cached_tokens}
                self._enter(request.request_id, _RECOMPUTE if has_output else _PREFILL, now, args)

    def mark(self, step_id: int, phase: str) -> None:
        """Ends a phase of a step."""
        step = self._steps.get(step_id)
        now = self._clock()
        if step is not None:
            step.phases.append((phase, self._cursor, now))
        self._cursor = now

    def waited(self, step_id: int) -> None:
        """Ends the wait for a step; records its prompt chunks and the requests that now decode."""
        self.mark(step_id, "wait")
        step, now = self._steps.get(step_id), self._cursor
        if step is None:
            return
        # The device runs steps one after the other, although two may be in flight.
        began = max(step.planned_at, self._waited_at)
        self._waited_at = now
        for row in step.prefill_rows:
            request_id = self._in_slot.get(row.slot, "")
            phase = self._phase_of.get(request_id)
            if phase not in (_PREFILL, _RECOMPUTE):
                continue
            args = {"step": step_id, "tokens": row.num_tokens}
            self._tracer.begin(_REQUEST, request_id, "chunk", began, args)
            self._tracer.end(_REQUEST, request_id, "chunk", now)
            if row.is_sampled:
                if phase == _PREFILL:
                    self._tracer.instant(_REQUEST, request_id, "first token", now)
                self._enter(request_id, "decode", now)

    def completed(self, step_id: int, failure: str = "") -> None:
        """Records the step with its phases, and the counters if they are due."""
        self.mark(step_id, "apply")
        step = self._steps.pop(step_id, None)
        if step is None:
            return
        track = self._tracks[step_id % len(self._tracks)]
        kind, args = step.describe()
        if failure:
            args["failure"] = failure
        self._tracer.span(track, kind, step.begin, self._cursor, args)
        for phase, begin, end in step.phases:
            self._tracer.span(track, phase, begin, end)
        if self._cursor - self._counted_at >= COUNTER_INTERVAL_S or not self._phase_of:
            self._count(self._cursor)

    def arrived(self, request: GenerateRequest, now: float) -> None:
        """Opens a request at the time of its arrival."""
        at = now if request.arrival is None else min(now, request.arrival)
        request_id = request.request_id
        args: dict[str, Any] = {
            "request_id": request_id,
            "prompt_tokens": request.num_prompt_tokens,
            "max_tokens": request.stop.max_tokens,
        }
        if request.session_id:
            args["session_id"] = request.session_id
        if request.trace_parent:
            args["traceparent"] = request.trace_parent
        self._tracer.begin(_REQUEST, request_id, _REQUEST, at, args)
        self._tracer.begin(_REQUEST, request_id, _QUEUED, at)
        self._phase_of[request_id] = _QUEUED

    def ended(self, request_id: str, event: TokenEvent) -> None:
        """Closes a request."""
        if request_id in self._phase_of:
            self._close(request_id, self._clock(), _describe_end(event))

    def close(self) -> None:
        """Closes all requests that are still open."""
        now = self._clock()
        for request_id in tuple(self._phase_of):
            self._close(request_id, now, {"end": "after the trace"})
        self._count(now)

    def _enter(self, request_id: str, phase: str, at: float, args: Details = None) -> None:
        self._tracer.end(_REQUEST, request_id, self._phase_of[request_id], at)
        self._tracer.begin(_REQUEST, request_id, phase, at, args)
        self._phase_of[request_id] = phase

    def _close(self, request_id: str, at: float, args: dict[str, Any]) -> None:
        self._tracer.end(_REQUEST, request_id, self._phase_of.pop(request_id), at)
        self._tracer.end(_REQUEST, request_id, _REQUEST, at, args)

    def _count(self, at: float) -> None:
        load, count = self._load(), self._tracer.counter
        count("requests", at, {"running": load.num_running, "waiting": load.num_waiting})
        held = load.num_total_blocks - load.num_free_blocks - load.num_evictable_blocks
        count("KV blocks", at, {"held": held, "evictable": load.num_evictable_blocks})
        self._counted_at = at


class _Step:
    """A step from its plan until it is settled."""

    __slots__ = ("_plan", "begin", "phases", "planned_at", "prefill_rows")

    def __init__(self, plan: StepPlan, begin: float, planned_at: float) -> None:
        self._plan = plan
        self.begin = begin
        self.planned_at = planned_at
        self.phases = [("plan", begin, planned_at)]
        prefill = takewhile(lambda row: row.token_ids is not None, reversed(plan.rows))
        self.prefill_rows = list(prefill)  # decode rows come first in a plan

    def describe(self) -> tuple[str, dict[str, Any]]:
        """Returns the kind of the step and its details."""
        num_prefill, num_rows = len(self.prefill_rows), len(self._plan.rows)
        kind = "decode" if num_rows else "no rows"
        if num_prefill:
            kind = "prefill" if num_prefill == num_rows else "mixed"
        return kind, {
            "step": self._plan.step_id,
            "decode_rows": num_rows - num_prefill,
            "prefill_rows": num_prefill,
            "prefill_tokens": sum(row.num_tokens for row in self.prefill_rows),
        }


def _track_names(depth: int) -> list[str]:
    return ["steps"] if depth == 1 else [f"steps, {n + 1} of {depth}" for n in range(depth)]


def _describe_end(event: TokenEvent) -> dict[str, Any]:
    end = event.end
    if isinstance(end, Finished):
        return {
            "end": end.reason,
            "output_tokens": end.num_output_tokens,
            "cached_tokens": sum(count for _, count in end.cached),
            "preemptions": end.num_preemptions,
        }
    return {"end": "none" if end is None else f"{type(end).__name__}: {end.message}"}
