"""Flows, such as the requests of one tenant, and what each of them was served."""

from bisect import bisect_left, insort
from heapq import heappop, heappush

MAX_IDLE_FLOWS = 4096
"""Flows of one kind that are remembered though nothing of them waits."""

Turn = tuple[float, int, str]
"""What a flow counts as served, the arrival index of its next sequence, and its name."""


class Flows:
    """What each flow was served, on a common scale, and those that wait, the least served first.

    A flow that comes back after a rest starts level with the least served of those that wait: it
    is owed nothing for the time it asked for nothing (start-time fair queueing; for tokens of
    language models Sheng et al., "Fairness in Serving Large Language Models", 2023).
    """

    def __init__(self) -> None:
        self._served: dict[str, float] = {}
        self._level = 0.0
        self._turns: dict[str, Turn] = {}
        """By flow, of those that wait."""
        self._ranked: list[Turn] = []
        """The same, sorted."""

    def __len__(self) -> int:
        return len(self._served)

    def served(self, flow: str) -> float:
        """What a flow counts as served."""
        return self._served.get(flow, self._level)

    def charge(self, flow: str, num_tokens: int) -> None:
        """Notes what a flow was served."""
        share = self._served[flow] = self._served.get(flow, self._level) + num_tokens
        turn = self._turns.get(flow)
        if turn is not None:
            ranked = self._ranked
            del ranked[bisect_left(ranked, turn)]
            if share < self._level:
                share = self._served[flow] = self._level
            turn = self._turns[flow] = share, turn[1], flow
            insort(ranked, turn)
        else:
            self.forget_idle()

    def head(self, flow: str) -> int | None:
        """The arrival index of a flow's next sequence; None: nothing of it waits."""
        turn = self._turns.get(flow)
        return None if turn is None else turn[1]

    @property
    def first_head(self) -> int | None:
        """The least of all heads; None: nothing waits."""
        return min((turn[1] for turn in self._ranked), default=None)

    def set_head(self, flow: str, arrival_index: int | None) -> None:
        """Notes a flow's next sequence; None: nothing of it waits any more."""
        if arrival_index is None:
            self._drop(flow)
            self.forget_idle()
        else:
            self._place(flow, arrival_index)

    def begin(self) -> list[Turn]:
        """The flows that wait, the least served first; to be read while nothing is noted.

        Who comes from now on starts at the first one's level.
        """
        if self._ranked:
            self._level = max(self._level, self._ranked[0][0])
        return self._ranked

    def _place(self, flow: str, arrival_index: int) -> None:
        self._drop(flow)
        share = self._served[flow] = max(self.served(flow), self._level)
        turn = self._turns[flow] = share, arrival_index, flow
        insort(self._ranked, turn)

    def _drop(self, flow: str) -> None:
        turn = self._turns.pop(flow, None)
        if turn is not None:
            del self._ranked[bisect_left(self._ranked, turn)]

    def forget_idle(self, most: int = MAX_IDLE_FLOWS) -> None:
        """Of more than so many that do not wait keeps half: who had most would gain most."""
        if len(self._served) <= most + len(self._turns):
            return
        idle = [flow for flow in self._served if flow not in self._turns]
        idle.sort(key=self._served.__getitem__)
        for flow in idle[: len(idle) - most // 2]:
            del self._served[flow]


class Turns:
    """Who is next if each flow pays when its turn comes; the flows themselves stay as they are."""

    __slots__ = ("_place", "_ranked", "_returned")

    def __init__(self, flows: Flows) -> None:
        self._ranked = flows.begin()
        self._place = 0
        self._returned: list[Turn] = []
        """Those that had a turn and wait for another, as a heap."""

    def peek(self) -> Turn | None:
        """Whose turn comes next; None: nobody's."""
        first = self._ranked[self._place] if self._place < len(self._ranked) else None
        if not self._returned or (first is not None and first < self._returned[0]):
            return first
        return self._returned[0]

    def pop(self) -> Turn:
        """The same, whose turn that was."""
        turn = self.peek()
        assert turn is not None, "nobody is left"
        if self._returned and turn is self._returned[0]:
            return heappop(self._returned)
        self._place += 1
        return turn

    def push(self, turn: Turn) -> None:
        """Lets a flow wait for another turn."""
        heappush(self._returned, turn)
