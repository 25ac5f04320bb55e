"""Equal service for tenants, and for the sessions of each tenant."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

from openinfer_scheduler import SequenceState, WaitingSnapshot, least_urgent
from openinfer_scheduler.policies._flows import MAX_IDLE_FLOWS, FlowOrder, Flows

MAX_IDLE_SESSIONS = 4 * MAX_IDLE_FLOWS
"""Upper bound on idle sessions of all tenants whose service is remembered."""


class Fair:
    """Policy that serves the least served tenant first, and its least served session.

    Service is counted in tokens forwarded, prompt and output alike. Cached tokens are free; tokens
    that a preemption makes the engine forward again count again. Requests of one session go in
    order of arrival, and so do running sequences. Preempts the least urgent sequence, among equals
    the youngest.

    Starvation-free: while a request waits and others start before it, the service of their tenants
    and sessions grows until the waiting one has the least. The oldest running sequence is never
    preempted. Requests without a tenant share one tenant, and those without a session one session.
    """

    def __init__(self) -> None:
        self._tenants = Flows()
        self._sessions: dict[str, Flows] = {}
        self._unbooked: dict[tuple[str, str], int] = {}
        """Tokens charged since the last order, by tenant and session."""
        self._queues: dict[tuple[str, str], list[int]] = {}
        """Arrival indices of waiting sequences, sorted, by tenant and session."""
        self._flows: dict[int, tuple[str, str]] = {}
        """Tenant and session of waiting sequences, by arrival index."""
        self._number = 0
        """Number of the snapshot that was ordered last; 0: none."""
        self._num_recorded = 0
        """Charges and arrivals since the last count of idle sessions."""

    def charge(self, sequence: SequenceState, num_tokens: int, /) -> None:
        """Records tokens that plans forward; `_book` adds them to the service later."""
        request, unbooked = sequence.request, self._unbooked
        flow = request.tenant, request.session_id
        unbooked[flow] = unbooked.get(flow, 0) + num_tokens
        if len(unbooked) > MAX_IDLE_FLOWS:
            self._book()

    def order(self, sequences: Sequence[SequenceState], now: float, /) -> Iterable[SequenceState]:
        """Returns the least served first; each returned sequence counts as served after that."""
        if not sequences or sequences[0].is_running:
            return sequences
        self._book()
        snapshot = WaitingSnapshot.of(sequences)
        if snapshot.follows(self._number):
            for index in snapshot.left:
                self._remove(index)
            joined: Iterable[SequenceState] = snapshot.joined
        else:
            for index in list(self._flows):
                self._remove(index)
            joined = snapshot
        for sequence in joined:
            self._add(sequence)
        self._number = snapshot.number
        if self._num_recorded > MAX_IDLE_FLOWS:
            self._forget_idle()
        return self._ordered(snapshot)

    def chunk(self, sequence: SequenceState, max_tokens: int, /) -> int:
        """Returns the largest chunk that is allowed."""
        return max_tokens

    def victim(self, candidates: Sequence[SequenceState], /) -> SequenceState:
        """Returns the least urgent candidate."""
        return least_urgent(candidates)

    def _ordered(self, snapshot: WaitingSnapshot) -> Iterator[SequenceState]:
        """Yields sequences; each adds its uncached tokens to its tenant's and session's service."""
        tenants = FlowOrder(self._tenants)
        sessions: dict[str, FlowOrder] = {}
        places: dict[tuple[str, str], int] = {}
        while tenants.peek() is not None:
            tenant_served, _, tenant = tenants.pop()
            turns = sessions.get(tenant)
            if turns is None:
                turns = sessions[tenant] = FlowOrder(self._sessions_of(tenant))
            session_served, index, session = turns.pop()
            sequence = snapshot.at(index)
            cost = sequence.num_uncached_tokens
            yield sequence
            queue = self._queues[tenant, session]
            place = places[tenant, session] = places.get((tenant, session), 0) + 1
            if place < len(queue):
                turns.push((session_served + cost, queue[place], session))
            following = turns.peek()
            if following is not None:
                tenants.push((tenant_served + cost, following[1], tenant))

    def _add(self, sequence: SequenceState) -> None:
        request, index = sequence.request, sequence.arrival_index
        tenant, session = flow = request.tenant, request.session_id
        self._flows[index] = flow
        self._num_recorded += 1
        queue = self._queues.setdefault(flow, [])
        insort(queue, index)
        if queue[0] == index:
            self._sessions_of(tenant).set_head(session, index)
            head = self._tenants.head(tenant)
            if head is None or index < head:
                self._tenants.set_head(tenant, index)

    def _remove(self, index: int) -> None:
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
        """Adds the recorded tokens to the service of tenants and sessions."""
        unbooked, self._unbooked = self._unbooked, {}
        self._num_recorded += len(unbooked)
        by_tenant: dict[str, int] = {}
        for (tenant, session), num_tokens in unbooked.items():
            by_tenant[tenant] = by_tenant.get(tenant, 0) + num_tokens
            self._sessions_of(tenant).charge(session, num_tokens)
        for tenant, num_tokens in by_tenant.items():
            self._tenants.charge(tenant, num_tokens)

    def _forget_idle(self) -> None:
        """Forgets all idle sessions if there are more than `MAX_IDLE_SESSIONS`."""
        self._num_recorded = 0
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
