"""Equal service for tenants, and for the sessions of each."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

from openinfer_scheduler._policy import least_urgent
from openinfer_scheduler.policies._flows import MAX_IDLE_FLOWS, Flows, Turns
from openinfer_scheduler.state._sequence import SequenceState
from openinfer_scheduler.state._waiting_queue import Waiting, moment_of

MAX_IDLE_SESSIONS = 4 * MAX_IDLE_FLOWS
"""Sessions of all tenants that are remembered though nothing of them waits."""


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
        self._tenants = Flows()
        self._sessions: dict[str, Flows] = {}
        self._unbooked: dict[tuple[str, str], int] = {}
        """By tenant and session, what was forwarded since the shares were looked at."""
        self._queues: dict[tuple[str, str], list[int]] = {}
        """By tenant and session, the arrival indices of those that wait, sorted."""
        self._flows: dict[int, tuple[str, str]] = {}
        """By arrival index, of those that wait: tenant and session."""
        self._number = 0
        """Of the moment of the queue whose sequences these are; 0: of none."""
        self._num_noted = 0
        """Sessions served or joined, however often, since too many were looked for."""

    def charge(self, sequence: SequenceState, num_tokens: int, /) -> None:
        """Notes what a plan forwards."""
        request, unbooked = sequence.request, self._unbooked
        flow = request.tenant, request.session_id
        unbooked[flow] = unbooked.get(flow, 0) + num_tokens
        if len(unbooked) > MAX_IDLE_FLOWS:
            self._book()

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Iterable[SequenceState]:
        """The least served first, as if each were served when its turn comes."""
        if not sequences or sequences[0].is_running:
            return sequences
        self._book()
        moment = moment_of(sequences)
        if moment.follows(self._number):
            for index in moment.left:
                self._leave(index)
            joined: Iterable[SequenceState] = moment.joined
        else:
            for index in list(self._flows):
                self._leave(index)
            joined = moment
        for sequence in joined:
            self._join(sequence)
        self._number = moment.number
        if self._num_noted > MAX_IDLE_FLOWS:
            self._forget_idle()
        return self._turns(moment)

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """As much as allowed."""
        return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """The least urgent."""
        return least_urgent(candidates)

    def _turns(self, moment: Waiting) -> Iterator[SequenceState]:
        """Sequences as their turns come; each costs its flow what it has left to forward."""
        tenants = Turns(self._tenants)
        sessions: dict[str, Turns] = {}
        places: dict[tuple[str, str], int] = {}
        while tenants.peek() is not None:
            tenant_share, _, tenant = tenants.pop()
            turns = sessions.get(tenant)
            if turns is None:
                turns = sessions[tenant] = Turns(self._sessions_of(tenant))
            session_share, index, session = turns.pop()
            sequence = moment.at(index)
            cost = sequence.num_uncached_tokens
            yield sequence
            queue = self._queues[tenant, session]
            place = places[tenant, session] = places.get((tenant, session), 0) + 1
            if place < len(queue):
                turns.push((session_share + cost, queue[place], session))
            following = turns.peek()
            if following is not None:
                tenants.push((tenant_share + cost, following[1], tenant))

    def _join(self, sequence: SequenceState) -> None:
        request, index = sequence.request, sequence.arrival_index
        tenant, session = flow = request.tenant, request.session_id
        self._flows[index] = flow
        self._num_noted += 1
        queue = self._queues.setdefault(flow, [])
        insort(queue, index)
        if queue[0] == index:
            self._sessions_of(tenant).set_head(session, index)
            head = self._tenants.head(tenant)
            if head is None or index < head:
                self._tenants.set_head(tenant, index)

    def _leave(self, index: int) -> None:
        tenant, session = flow = self._flows.pop(index)
        queue = self._queues[flow]
        del queue[bisect_left(queue, index)]
        if not queue:
            del self._queues[flow]
        sessions = self._sessions_of(tenant)
        if sessions.head(session) == index:
            sessions.set_head(session, queue[0] if queue else None)
            if self._tenants.head(tenant) == index:
                self._tenants.set_head(tenant, sessions.first_head)

    def _book(self) -> None:
        """Adds what was forwarded to the shares."""
        unbooked, self._unbooked = self._unbooked, {}
        self._num_noted += len(unbooked)
        by_tenant: dict[str, int] = {}
        for (tenant, session), num_tokens in unbooked.items():
            by_tenant[tenant] = by_tenant.get(tenant, 0) + num_tokens
            self._sessions_of(tenant).charge(session, num_tokens)
        for tenant, num_tokens in by_tenant.items():
            self._tenants.charge(tenant, num_tokens)

    def _forget_idle(self) -> None:
        """Of sessions that do not wait forgets all where there are too many, whoever has them."""
        self._num_noted = 0
        num_idle = sum(map(len, self._sessions.values())) - len(self._queues)
        if num_idle <= MAX_IDLE_SESSIONS:
            return
        waiting = {tenant for tenant, _ in self._queues}
        self._sessions = {t: flows for t, flows in self._sessions.items() if t in waiting}
        for flows in self._sessions.values():
            flows.forget_idle(0)

    def _sessions_of(self, tenant: str) -> Flows:
        sessions = self._sessions.get(tenant)
        if sessions is None:
            sessions = self._sessions[tenant] = Flows()
        return sessions
