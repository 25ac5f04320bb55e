"""Fair queueing: flows, such as the requests of one tenant, and the service that each received."""

from bisect import bisect_left, insort
from heapq import heappop, heappush

MAX_IDLE_FLOWS = 4096
"""Upper bound on idle flows (no request waits) of one kind whose service is remembered."""

FlowTurn = tuple[float, int, str]
"""A waiting flow's place in the order: its service, the arrival index of its first waiting
sequence, and its name."""


class Flows:
    """The service that each flow received, and the waiting flows sorted by it.

    Start-time fair queueing: a flow that returns after a pause starts level with the least served
    waiting flow, so it gains no credit for the time in which it asked for nothing. Applied to
    tokens of language models by Sheng et al., "Fairness in Serving Large Language Models", 2023.
    """

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._level = 0.0
        """Service with which new and returning flows start: that of the least served waiting flow.
        It never falls."""
        self._turns: dict[str, FlowTurn] = {}
        """Turns of the waiting flows, by flow."""
        self._ranked: list[FlowTurn] = []
        """Turns of the waiting flows, sorted."""

    def __len__(self) -> int:
        return len(self._served)

    def served(self, flow: str) -> float:
        """Returns the service of a flow; a new flow starts at the level."""
        return self._served.get(flow, self._level)

    def charge(self, flow: str, num_tokens: int) -> None:
        """Adds to the service of a flow."""
        served = self._served[flow] = self._served.get(flow, self._level) + num_tokens
        turn = self._turns.get(flow)
        if turn is not None:
            ranked = self._ranked
            del ranked[bisect_left(ranked, turn)]
            if served < self._level:
                served = self._served[flow] = self._level
            turn = self._turns[flow] = served, turn[1], flow
            insort(ranked, turn)
        else:
            self.forget_idle()

    def head(self, flow: str) -> int | None:
        """Returns the arrival index of a flow's first waiting sequence; None if it is idle."""
        turn = self._turns.get(flow)
        return None if turn is None else turn[1]

    @property
    def first_head(self) -> int | None:
        """The lowest arrival index of all waiting sequences; None if all flows are idle."""
        return min((turn[1] for turn in self._ranked), default=None)

    def set_head(self, flow: str, arrival_index: int | None) -> None:
        """Sets the first waiting sequence of a flow; None makes the flow idle."""
        self._remove_turn(flow)
        if arrival_index is None:
            self.forget_idle()
            return
        served = self._served[flow] = max(self.served(flow), self._level)
        turn = self._turns[flow] = served, arrival_index, flow
        insort(self._ranked, turn)

    def begin_order(self) -> list[FlowTurn]:
        """Returns the waiting flows, the least served first; raises the level to the first one's.

        The list is valid until the next change.
        """
        if self._ranked:
            self._level = max(self._level, self._ranked[0][0])
        return self._ranked

    def forget_idle(self, limit: int = MAX_IDLE_FLOWS) -> None:
        """Keeps at most `limit` idle flows.

        When the limit is passed, forgets idle flows with the least service until half the limit
        remain: forgetting a heavy flow would reward it with a fresh start.
        """
        if len(self._served) <= limit + len(self._turns):
            return
        idle = [flow for flow in self._served if flow not in self._turns]
        idle.sort(key=self._served.__getitem__)
        for flow in idle[: len(idle) - limit // 2]:
            del self._served[flow]

    def _remove_turn(self, flow: str) -> None:
        turn = self._turns.pop(flow, None)
        if turn is not None:
            del self._ranked[bisect_left(self._ranked, turn)]


class FlowOrder:
    """The order in which flows get turns, each charged for its turn. `flows` is not changed."""

    __slots__ = ("_place", "_ranked", "_returned")

    def __init__(self, flows: Flows) -> None:
        self._ranked = flows.begin_order()
        self._place = 0
        self._returned: list[FlowTurn] = []
        """Heap of flows that had a turn and wait for another."""

    def peek(self) -> FlowTurn | None:
        """Returns the next turn; None if no flow waits."""
        first = self._ranked[self._place] if self._place < len(self._ranked) else None
        if not self._returned or (first is not None and first < self._returned[0]):
            return first
        return self._returned[0]

    def pop(self) -> FlowTurn:
        """Removes and returns the next turn."""
        turn = self.peek()
        assert turn is not None, "no flow waits"
        if self._returned and turn is self._returned[0]:
            return heappop(self._returned)
        self._place += 1
        return turn

    def push(self, turn: FlowTurn) -> None:
        """Adds another turn of a flow."""
        heappush(self._returned, turn)
