"""Discrete-event simulation of a trace over replicas. Its events are the steps of the engine loops.

Every replica has a clock of its own. The replica with the earliest clock runs next. A client sends
its next turn once no busy replica has an earlier clock, so no effect precedes its cause.

A replica may run ahead of the others by the shortest client round trip: the return to the client
and the shortest wait before a next turn (conservative parallel simulation). Running ahead keeps the
replica's state in the processor's cache.

Runs of pure decode steps are skipped over at once. Such a replica is due at the end of the run, or
when a request arrives, because no client acts on the tokens of the run.
"""

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from math import inf

import numpy as np

from openinfer_contract import (
    Finished,
    GenerateRequest,
    Rejected,
    StopRules,
    TokenEvent,
)
from openinfer_sim.errors import SimError
from openinfer_sim.replicas._replica import Replica
from openinfer_sim.replicas._routing import Route, Router
from openinfer_sim.results._recorder import Recorder, RequestRecord, outcome_of
from openinfer_sim.traces._trace import SegmentTokens, Session, Trace

_BYTES_PER_ID = 4


@dataclass(slots=True)
class _Client:
    """Client of one session: its next turn and its history."""

    session: Session
    number: int = 0
    started_at: float = 0.0
    history: bytearray = field(default_factory=bytearray)


class _Flight:
    """Request in flight, and the sink of its engine events."""

    __slots__ = (
        "arrival", "cached", "client", "clock", "first_at", "gaps", "last_at", "num_output",
        "replica", "request", "route", "simulation",
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
        self.replica = simulation.replicas[route.replica]
        self.clock = self.replica.clock
        self.gaps = simulation.recorder.inter_token_s
        self.first_at: float | None = None
        self.last_at = 0.0
        self.num_output = 0
        self.cached = 0

    def __call__(self, event: TokenEvent, /) -> None:
        now = self.clock.now
        column = event.token_ids
        if column:
            if len(column) > _BYTES_PER_ID:
                times = np.array([self.last_at, *self.replica.step_times])
                self.gaps.frombytes(np.diff(times).astype(np.float32).tobytes())
            elif self.first_at is not None:
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
    """One run of a trace. Deterministic: equal arguments give equal records.

    Args:
        trace: Sessions of the clients, with their requests.
        replicas: New replicas whose vocabularies have the same size.
        router: Chooses the replica of each request.
        vocab_size: Upper bound of prompt ids, exclusive.

    Attributes:
        recorder: Records of all requests. Complete once `run` has returned.
    """

    def __init__(
        self, trace: Trace, replicas: list[Replica], router: Router, *, vocab_size: int
    ) -> None:
        self.replicas = replicas
        self.router = router
        self.recorder = Recorder(num_sessions=len(trace.sessions))
        self._tokens = SegmentTokens(trace.seed, vocab_size)
        self._sends: list[tuple[float, int, _Client]] = []
        """Heap of (time due, sequence number, client that sends its next turn)."""
        self._num_sends = 0
        self._inboxes: list[deque[tuple[float, _Flight]]] = [deque() for _ in replicas]
        """Requests that a replica has not read yet, by replica: (time readable, request), oldest
        first.
        """
        self._busy: list[tuple[float, int]] = []
        """Heap of (time due, replica) of replicas with work. An entry is stale if `_due` differs.
        """
        self._due = [inf] * len(replicas)
        self._lookahead_s = _least_wait_s(trace) + min(each.return_s for each in replicas)
        for session in trace.sessions:
            self._push(session.start_s + session.turns[0].wait_s, _Client(session))

    def run(self) -> Recorder:
        """Runs until every session has ended.

        Raises:
            SimError: A replica has work but makes no progress.
        """
        sends, busy, due = self._sends, self._busy, self._due
        while sends or busy:
            if busy and busy[0][0] != due[busy[0][1]]:
                heappop(busy)
            elif sends and (not busy or sends[0][0] <= busy[0][0]):
                now, _, client = heappop(sends)
                self._send(client, now)
            else:
                now, index = busy[0]
                limit = sends[0][0] if sends else inf
                self._advance(index, min(limit, now + self._lookahead_s))
        return self.recorder

    def end(self, flight: _Flight, end: object, now: float) -> None:
        """Records the end of a request and schedules the next turn of its session."""
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
        if isinstance(end, Rejected) and not self.recorder.first_refusal:
            self.recorder.first_refusal = end.message
        client.number += 1
        turns = client.session.turns
        if not record.is_served:
            return
        if client.number < len(turns):
            self._push(record.ended_at + turns[client.number].wait_s, client)
        else:
            self.recorder.session_s.append(record.ended_at - client.started_at)

    def _push(self, due: float, client: _Client) -> None:
        self._num_sends += 1
        heappush(self._sends, (due, self._num_sends, client))

    def _send(self, client: _Client, now: float) -> None:
        """Sends a client's next turn: routes it and passes it through the front process."""
        session = client.session
        turn = session.turns[client.number]
        if client.number == 0:
            client.started_at = now
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
        index = route.replica
        readable_at = self.replicas[index].receive(now, request.num_prompt_tokens)
        self._inboxes[index].append((readable_at, flight))
        due = self._next_due(index)
        if due != self._due[index]:
            self._due[index] = due
            heappush(self._busy, (due, index))

    def _next_due(self, index: int) -> float:
        """Returns when a replica is due, or infinity.

        A replica is due when it may send a token that a client acts on, or when it can read a
        request.
        """
        inbox, replica = self._inboxes[index], self.replicas[index]
        due = replica.quiet_until if replica.has_work else inf
        return min(due, inbox[0][0]) if inbox else due

    def _advance(self, index: int, limit: float) -> None:
        """Runs the replica with the earliest clock until `limit`."""
        replica, inbox = self.replicas[index], self._inboxes[index]
        while True:
            if inbox and (inbox[0][0] <= replica.clock.now or not replica.has_work):
                readable_at, flight = inbox.popleft()
                replica.submit(readable_at, flight.request, flight)
            elif not replica.advance(min(limit, inbox[0][0]) if inbox else limit):
                raise SimError(
                    f"replica {index} has work but makes no progress at {replica.clock.now:.6f} s"
                )
            due = self._next_due(index)
            if due >= limit:
                break
        self._due[index] = due
        if due < inf:
            heapreplace(self._busy, (due, index))
        else:
            heappop(self._busy)


def _least_wait_s(trace: Trace) -> float:
    """Returns the shortest wait before a later turn of any session."""
    return min((turn.wait_s for s in trace.sessions for turn in s.turns[1:]), default=inf)
