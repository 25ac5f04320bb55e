"""Equal service for tenants, and for the sessions of each."""

from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from openinfer_contract import GenerateRequest
from openinfer_scheduler._policy import least_urgent
from openinfer_scheduler._sequence import SequenceState

_NUM_RANKED = 64
"""Waiting sequences that a plan ranks; the rest follows in order of arrival."""

_MAX_IDLE_FLOWS = 4096
"""Tenants, and sessions of each, that are remembered though nothing of them waits."""

_Flow = tuple[str, str]
"""A tenant, and a session of it."""


@dataclass(slots=True)
class _Served:
    request: GenerateRequest
    num_tokens: int


class _Shares:
    """What each flow was served, on a common scale.

    A flow that comes back after a rest starts level with the least served of those that wait: it
    is owed nothing for the time it asked for nothing (start-time fair queueing; for tokens of
    language models Sheng et al., "Fairness in Serving Large Language Models", 2023).
    """

    def __init__(self) -> None:
        self._served: dict[Hashable, float] = {}
        self._level = 0.0

    def charge(self, flow: Hashable, num_tokens: int) -> None:
        self._served[flow] = self._served.get(flow, self._level) + num_tokens

    def of_waiting(self, flows: Iterable[Hashable]) -> dict[Hashable, float]:
        """What each of the flows that wait counts as served; they set the level."""
        served, level = self._served, self._level
        shares = {flow: max(served.get(flow, level), level) for flow in flows}
        self._level = max(level, min(shares.values()))
        served.update(shares)
        if len(served) > _MAX_IDLE_FLOWS + len(shares):
            self._forget_idle(shares)
        return shares

    def _forget_idle(self, waiting: Mapping[Hashable, float]) -> None:
        """Keeps half of those that do not wait: who had most would gain most if forgotten."""
        idle = [flow for flow in self._served if flow not in waiting]
        idle.sort(key=self._served.__getitem__)
        for flow in idle[: len(idle) - _MAX_IDLE_FLOWS // 2]:
            del self._served[flow]


class Fair:
    """Starts the next request of the tenant that was served least; within it, of its session.

    Service is tokens forwarded, prompt and output alike; what the cache spares is free, what a
    preemption makes forward again counts again. The requests of a session go in order of arrival,
    and so do running sequences; preempts the least urgent, of equals the youngest.

    Starvation-free: while a request waits and others start before it, their tenants' and sessions'
    service grows until its own has the least; and of the running ones the oldest is never
    preempted. The tenant without a name is a tenant, too; so is the session.
    """

    def __init__(self) -> None:
        self._tenants = _Shares()
        self._sessions: dict[str, _Shares] = {}
        self._unbooked: dict[str, _Served] = {}
        """By request id, what was forwarded since the shares were looked at."""

    def charge(self, sequence: SequenceState, num_tokens: int, /) -> None:
        """Notes what a plan forwards."""
        served = self._unbooked.get(sequence.request_id)
        if served is not None:
            served.num_tokens += num_tokens
            return
        self._unbooked[sequence.request_id] = _Served(sequence.request, num_tokens)
        if len(self._unbooked) > _MAX_IDLE_FLOWS:
            self._book()

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Sequence[SequenceState]:
        """The least served first, as if each were served when its turn comes."""
        if not sequences or sequences[0].is_running:
            return sequences
        self._book()
        flows: dict[_Flow, deque[SequenceState]] = {}
        for sequence in sequences:
            request = sequence.request
            flow = request.tenant, request.session_id
            queue = flows.get(flow)
            if queue is None:
                queue = flows[flow] = deque()
            queue.append(sequence)
        waiting: dict[str, dict[str, deque[SequenceState]]] = {}
        for (tenant, session_id), queue in flows.items():
            waiting.setdefault(tenant, {})[session_id] = queue
        ranked = self._rank(waiting)
        first = set(ranked)
        return ranked + [sequence for sequence in sequences if sequence not in first]

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """As much as allowed."""
        return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """The least urgent."""
        return least_urgent(candidates)

    def _rank(self, waiting: dict[str, dict[str, deque[SequenceState]]]) -> list[SequenceState]:
        """The first `_NUM_RANKED` sequences; takes them out of the queues."""
        shares = self._tenants.of_waiting(waiting)
        # Arrival indices are unique, so that no comparison goes beyond them.
        tenants = []
        for tenant, sessions in waiting.items():
            own = self._sessions_of(tenant).of_waiting(sessions)
            queues = [
                (own[name], queue[0].arrival_index, queue) for name, queue in sessions.items()
            ]
            heapify(queues)
            tenants.append((shares[tenant], queues[0][1], queues))
        heapify(tenants)
        ranked: list[SequenceState] = []
        while tenants and len(ranked) < _NUM_RANKED:
            tenant_share, _, queues = tenants[0]
            session_share, _, queue = queues[0]
            sequence = queue.popleft()
            ranked.append(sequence)
            cost = sequence.num_uncached_tokens
            if queue:
                heapreplace(queues, (session_share + cost, queue[0].arrival_index, queue))
            else:
                heappop(queues)
            if queues:
                heapreplace(tenants, (tenant_share + cost, queues[0][1], queues))
            else:
                heappop(tenants)
        if len(self._sessions) > _MAX_IDLE_FLOWS + len(waiting):
            self._sessions = {t: s for t, s in self._sessions.items() if t in waiting}
        return ranked

    def _book(self) -> None:
        """Adds what was forwarded to the shares."""
        unbooked, self._unbooked = self._unbooked, {}
        for served in unbooked.values():
            request, num_tokens = served.request, served.num_tokens
            self._tenants.charge(request.tenant, num_tokens)
            self._sessions_of(request.tenant).charge(request.session_id, num_tokens)

    def _sessions_of(self, tenant: str) -> _Shares:
        return self._sessions.setdefault(tenant, _Shares())
