"""Equal service for tenants, and for the sessions of each."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heapreplace

from openinfer_contract import GenerateRequest
from openinfer_scheduler._policy import least_urgent
from openinfer_scheduler._sequence import SequenceState

_MAX_IDLE_FLOWS = 4096
"""Tenants, and sessions of each, that are remembered though nothing of them waits."""

_Queues = Mapping[str, Mapping[str, Sequence[SequenceState]]]
"""Sequences by tenant and session, each oldest first, and so are the tenants by their oldest."""

_Heap = list[tuple[float, int, int, Sequence[SequenceState]]]
"""Sessions by what they count as served, then by arrival of their next sequence: where in the
queue it is, and the queue."""


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
        self._unbooked: dict[int, _Served] = {}
        """By arrival, for ids come again, what was forwarded since the shares were looked at."""
        self._waiting: list[SequenceState] = []
        """What was ordered last."""
        self._queues: _Queues = {}
        """The same by tenant and session."""

    def charge(self, sequence: SequenceState, num_tokens: int, /) -> None:
        """Notes what a plan forwards."""
        served = self._unbooked.get(sequence.arrival_index)
        if served is not None:
            served.num_tokens += num_tokens
            return
        self._unbooked[sequence.arrival_index] = _Served(sequence.request, num_tokens)
        if len(self._unbooked) > _MAX_IDLE_FLOWS:
            self._book()

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Iterable[SequenceState]:
        """The least served first, as if each were served when its turn comes."""
        if not sequences or sequences[0].is_running:
            return sequences
        self._book()
        if sequences != self._waiting:
            self._waiting = list(sequences)
            self._queues = _by_flow(sequences)
        if len(self._sessions) > _MAX_IDLE_FLOWS + len(self._queues):
            self._sessions = {t: s for t, s in self._sessions.items() if t in self._queues}
        return self._turns(self._queues)

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """As much as allowed."""
        return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """The least urgent."""
        return least_urgent(candidates)

    def _turns(self, waiting: _Queues) -> Iterator[SequenceState]:
        """Sequences as their turns come; each costs its flow what it has left to forward."""
        shares = self._tenants.of_waiting(waiting)
        # Arrival indices are unique, so that no comparison goes beyond them.
        tenants = [
            (shares[tenant], next(iter(sessions.values()))[0].arrival_index, tenant)
            for tenant, sessions in waiting.items()
        ]
        heapify(tenants)
        queues: dict[str, _Heap] = {}
        while tenants:
            tenant_share, _, tenant = tenants[0]
            heap = queues.get(tenant)
            if heap is None:
                heap = queues[tenant] = self._heap_of(tenant, waiting[tenant])
            session_share, _, place, queue = heap[0]
            sequence = queue[place]
            cost = sequence.num_uncached_tokens
            yield sequence
            place += 1
            if place < len(queue):
                head = queue[place].arrival_index
                heapreplace(heap, (session_share + cost, head, place, queue))
            else:
                heappop(heap)
            if heap:
                heapreplace(tenants, (tenant_share + cost, heap[0][1], tenant))
            else:
                heappop(tenants)

    def _book(self) -> None:
        """Adds what was forwarded to the shares."""
        unbooked, self._unbooked = self._unbooked, {}
        for served in unbooked.values():
            request, num_tokens = served.request, served.num_tokens
            self._tenants.charge(request.tenant, num_tokens)
            self._sessions_of(request.tenant).charge(request.session_id, num_tokens)

    def _sessions_of(self, tenant: str) -> _Shares:
        return self._sessions.setdefault(tenant, _Shares())

    def _heap_of(self, tenant: str, sessions: Mapping[str, Sequence[SequenceState]]) -> _Heap:
        shares = self._sessions_of(tenant).of_waiting(sessions)
        heap = [
            (shares[name], queue[0].arrival_index, 0, queue) for name, queue in sessions.items()
        ]
        heapify(heap)
        return heap


def _by_flow(sequences: Iterable[SequenceState]) -> _Queues:
    queues: dict[str, dict[str, list[SequenceState]]] = defaultdict(lambda: defaultdict(list))
    for sequence in sequences:
        request = sequence.request
        queues[request.tenant][request.session_id].append(sequence)
    return queues
