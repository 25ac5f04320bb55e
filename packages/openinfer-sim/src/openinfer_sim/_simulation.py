"""Runs a trace over replicas: a discrete-event simulation whose events are the loops' own steps.

Every replica has a clock of its own. The one that is furthest behind steps next, and a client's
event takes place once no busy replica is behind it, so nothing happens before its cause.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from math import inf

from openinfer_contract import (
    Finished,
    GenerateRequest,
    StopRules,
    TokenEvent,
)
from openinfer_sim._recorder import Recorder, RequestRecord, outcome_of
from openinfer_sim._replica import Replica
from openinfer_sim._routing import Route, Router
from openinfer_sim._trace import SegmentTokens, Session, Trace
from openinfer_sim.errors import SimError

_BYTES_PER_ID = 4


@dataclass(slots=True)
class _Client:
    """One session: its next turn and what it has read so far."""

    session: Session
    number: int = 0
    history: bytearray = field(default_factory=bytearray)


class _Flight:
    """One turn on its way; the engine's sink."""

    __slots__ = (
        "arrival", "cached", "client", "clock", "first_at", "gaps", "last_at", "num_output",
        "request", "route", "simulation",
    )  # fmt: skip

    def __init__(
        self,
        simulation: "Simulation",
        client: _Client,
        arrival: float,
        route: Route,
        request: GenerateRequest,
    ) -> None:
        self.simulation = simulation
        self.client = client
        self.arrival = arrival
        self.route = route
        self.request = request
        self.clock = simulation.replicas[route.replica].clock
        self.gaps = simulation.recorder.inter_token_s
        self.first_at: float | None = None
        self.last_at = 0.0
        self.num_output = 0
        self.cached = 0

    def __call__(self, event: TokenEvent, /) -> None:
        now = self.clock.now
        column = event.token_ids
        if column:
            if self.first_at is not None:
                self.gaps.append(now - self.last_at)
            else:
                self.first_at = now
                self.simulation.router.on_first_token(self.route)
            self.last_at = now
            self.num_output += len(column) // _BYTES_PER_ID
            self.client.history += column
        if event.scheduled is not None:
            self.cached = sum(num_tokens for _, num_tokens in event.scheduled.cached)
        if event.end is not None:
            self.simulation.end(self, event.end, now)


class Simulation:
    """One run of a trace. Deterministic: the same arguments give the same records.

    Args:
        trace: what clients do.
        replicas: fresh, with vocabularies of one size.
        router: which replica takes a request.
        vocab_size: of prompts.

    Attributes:
        recorder: what clients saw, complete once `run` has returned.
    """

    def __init__(
        self, trace: Trace, replicas: list[Replica], router: Router, *, vocab_size: int
    ) -> None:
        self.replicas = replicas
        self.router = router
        self.recorder = Recorder()
        self._tokens = SegmentTokens(trace.seed, vocab_size)
        self._events: list[tuple[float, int, _Client | _Flight]] = []
        self._num_events = 0
        self._busy: list[tuple[float, int]] = []
        """(clock, index) of replicas with work: a heap."""
        self._is_busy = [False] * len(replicas)
        for session in trace.sessions:
            client = _Client(session)
            self._push(session.start_s + session.turns[0].wait_s, client)

    def run(self) -> Recorder:
        """Runs until every session has ended.

        Raises:
            SimError: the loop stands still with work left.
        """
        events, busy = self._events, self._busy
        while events or busy:
            if events and (not busy or events[0][0] <= busy[0][0]):
                due, _, what = heappop(events)
                if isinstance(what, _Client):
                    self._send(what, due)
                else:
                    self._submit(what, due)
            else:
                self._step_furthest_behind()
        return self.recorder

    def end(self, flight: _Flight, end: object, now: float) -> None:
        """A turn is over; the session's next one is due after its wait. Called by flights."""
        self.router.on_end(flight.route)
        if flight.first_at is None:
            self.router.on_first_token(flight.route)
        client = flight.client
        return_s = self.replicas[flight.route.replica].return_s
        record = RequestRecord(
            tenant=client.session.tenant,
            arrival=flight.arrival,
            first_token_at=None if flight.first_at is None else flight.first_at + return_s,
            ended_at=now + return_s,
            num_prompt_tokens=flight.request.num_prompt_tokens,
            num_cached_tokens=flight.cached,
            num_output_tokens=flight.num_output,
            num_preemptions=end.num_preemptions if isinstance(end, Finished) else 0,
            outcome=outcome_of(end),
            replica=flight.route.replica,
        )
        self.recorder.records.append(record)
        client.number += 1
        turns = client.session.turns
        if record.is_served and client.number < len(turns):
            self._push(record.ended_at + turns[client.number].wait_s, client)

    def _push(self, due: float, what: _Client | _Flight) -> None:
        self._num_events += 1
        heappush(self._events, (due, self._num_events, what))

    def _send(self, client: _Client, now: float) -> None:
        """A client sends its next turn: it is routed and goes through the front process."""
        session = client.session
        turn = session.turns[client.number]
        if not session.has_history:
            client.history.clear()
        client.history += self._tokens.column(turn.segments)
        prompt = bytes(client.history)
        route = self.router.route(prompt)
        request = GenerateRequest(
            request_id=f"{session.session_id}.{client.number}",
            prompt_token_ids=prompt,
            stop=StopRules(max_tokens=turn.num_output_tokens, ignore_eos=True),
            priority=session.priority,
            tenant=session.tenant,
            session_id=session.session_id,
            arrival=now,
        )
        flight = _Flight(self, client, now, route, request)
        readable_at = self.replicas[route.replica].receive(now, request.num_prompt_tokens)
        self._push(readable_at, flight)

    def _submit(self, flight: _Flight, now: float) -> None:
        index = flight.route.replica
        replica = self.replicas[index]
        replica.submit(now, flight.request, flight)
        if not self._is_busy[index] and replica.has_work:
            self._is_busy[index] = True
            heappush(self._busy, (replica.clock.now, index))

    def _step_furthest_behind(self) -> None:
        """Steps one replica until something else is due."""
        busy, events = self._busy, self._events
        _, index = busy[0]
        replica = self.replicas[index]
        clock, step = replica.clock, replica.step
        limit = min(busy[1][0] if len(busy) > 1 else inf, busy[2][0] if len(busy) > 2 else inf)
        while replica.has_work:
            if not step():
                raise SimError(f"replica {index} stands still at {clock.now:.6f} s")
            if clock.now > limit or (events and events[0][0] <= clock.now):
                heapreplace(busy, (clock.now, index))
                return
        self._is_busy[index] = False
        heappop(busy)
