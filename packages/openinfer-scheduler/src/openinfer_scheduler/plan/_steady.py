"""Decode rows that go on as they are: found once, planned and settled many times."""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from operator import iadd
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from openinfer_scheduler._step_plan import PlannedRow, TokenIds
from openinfer_scheduler.state._prefix_probe import BYTES_PER_ID
from openinfer_scheduler.state._sequence import Stay

_NOBODY: list[int] = []
_MAX_STOP_IDS = 256
"""Stop ids of requests that are over are remembered until there are so many."""

_ByNumber = dict[int, list[int]]
"""By number of a plan of these rows, counted from 0: arrival indices, some of who has left."""


class SteadyPlan(NamedTuple):
    """The rows that one plan had, column by column; none is ever changed.

    Attributes:
        owner: whose plan it is.
        number: of the plan.
        stays: theirs, by row.
        rows: where no row takes blocks.
        request_ids: theirs.
        tokens: their known tokens.
        indices: their `arrival_index`, which rises.
    """

    owner: "SteadyRows"
    number: int
    stays: list[Stay]
    rows: list[PlannedRow]
    request_ids: list[str]
    tokens: list[bytearray]
    indices: list[int]

    def is_one_each(self, counts: npt.NDArray[np.int32]) -> bool:
        """Whether these are the counts of a step that gave every row a token."""
        return counts.tobytes() == _ones(len(self.rows))

    def take_tokens(
        self, columns: Sequence[bytes], token_ids: TokenIds, closed: Iterable[Stay]
    ) -> set[int]:
        """Appends what the plan has sampled, except for rows to be looked at.

        Args:
            columns: the rows' tokens, as u32 each; more may follow.
            token_ids: the same.
            closed: stays that have been closed since, some of them not among these.

        Returns:
            Rows whose token was not appended: it may end the request, or the cache wants to hear
            of it, or the stay is closed.
        """
        rows = self.owner.rows_with_stop(token_ids[: len(self.rows)])
        due = self.owner.take_due(self.number)
        for index in (*due, *(stay.sequence.arrival_index for stay in closed)):
            row = _row_of(self.indices, index)
            if row is not None:
                rows.add(row)
        tokens = self.tokens
        if rows:
            tokens = tokens.copy()
            for row in rows:
                tokens[row] = bytearray()
        deque(map(iadd, tokens, columns), maxlen=0)
        return rows


class SteadyRows:
    """Running sequences that all decode one token a plan, for some plans more.

    As long as only a few come or leave, and nobody is touched otherwise
    (`SchedulerState.num_changes`), their next plan has the same rows but for those and the few that
    take blocks, and only the counts of each have to move. To look at 256 sequences in turn and find
    nothing changed would cost more than all else that such a step does. Nor does anybody ask the
    policy for an order: everyone is served.

    Attributes:
        stays: theirs, by row, in order of arrival.
        rows: of each plan, where no row takes blocks.
        num_plans: how many plans these rows had so far.
    """

    __slots__ = (
        "_due",
        "_ending",
        "_growing",
        "_indices",
        "_least_stop",
        "_num_changes",
        "_request_ids",
        "_stop_ids",
        "_tokens",
        "num_plans",
        "rows",
        "stays",
    )

    def __init__(self, stays: list[Stay], num_changes: int) -> None:
        self.stays = stays
        self.rows = [stay.decode_row for stay in stays]
        self._request_ids = [stay.request_id for stay in stays]
        self._tokens = [stay.tokens for stay in stays]
        self._indices = [stay.sequence.arrival_index for stay in stays]
        self._expect(_stop_ids_of(stays))
        self.num_plans = 0
        self._num_changes = num_changes
        self._due: _ByNumber = {}
        """Those whose token has to be looked at."""
        self._growing: _ByNumber = {}
        """Those that need blocks."""
        self._ending: _ByNumber = {}
        """Those that have all the rows they need before."""
        for stay in stays:
            self._note(stay)

    def is_current(self, num_changes: int) -> bool:
        """Whether nobody among them was touched by anything else than plans, starts and ends."""
        return num_changes == self._num_changes

    @property
    def has_stop_ids(self) -> bool:
        """Whether some id may end a request."""
        return bool(self._stop_ids)

    def change(self, left: Iterable[Stay], joined: Iterable[Stay]) -> None:
        """Before a plan: who is not among them any more, and who is from now on.

        Args:
            left: some may not have been among them. Besides, those leave that need no more rows.
            joined: they decode, and have rows left to plan.
        """
        ending = self._ending.pop(self.num_plans, _NOBODY)
        gone = [*ending, *(stay.sequence.arrival_index for stay in left)]
        come = list(joined)
        if not gone and not come:
            return
        # Copies: plans in flight keep theirs.
        stays, rows, indices = self.stays.copy(), self.rows.copy(), self._indices.copy()
        request_ids, tokens = self._request_ids.copy(), self._tokens.copy()
        for index in gone:
            row = _row_of(indices, index)
            if row is not None and (not stays[row].is_open or stays[row].is_through):
                del stays[row], rows[row], request_ids[row], tokens[row], indices[row]
        for stay in come:
            row = bisect_left(indices, stay.sequence.arrival_index)
            stays.insert(row, stay)
            rows.insert(row, stay.decode_row)
            request_ids.insert(row, stay.request_id)
            tokens.insert(row, stay.tokens)
            indices.insert(row, stay.sequence.arrival_index)
            if not stay.stop_ids <= self._stop_ids:
                self._expect(self._stop_ids | stay.stop_ids)
            self._note(stay)
        if len(self._stop_ids) > _MAX_STOP_IDS:
            self._expect(_stop_ids_of(stays))
        self.stays, self.rows, self._indices = stays, rows, indices
        self._request_ids, self._tokens = request_ids, tokens

    def take_growing(self) -> list[int]:
        """Rows that need blocks in the plan being made; asked once a plan."""
        found = {_row_of(self._indices, i) for i in self._growing.pop(self.num_plans, _NOBODY)}
        rows = sorted(row for row in found if row is not None)
        return [row for row in rows if self.stays[row].num_planned >= self.stays[row].plain_until]

    def note_growth(self, row: int) -> None:
        """Before the plan being made is counted: the row has blocks up to its `plain_until`."""
        stay = self.stays[row]
        _add(self._growing, self.num_plans + max(1, stay.plain_until - stay.num_planned), stay)

    def advance(self, step_id: int) -> SteadyPlan:
        """The plan being made has these rows."""
        number = self.num_plans
        self.num_plans += 1
        for stay in self.stays:
            stay.num_planned += 1
            stay.last_step = step_id
        return SteadyPlan(
            self, number, self.stays, self.rows, self._request_ids, self._tokens, self._indices
        )

    def rows_with_stop(self, token_ids: TokenIds) -> set[int]:
        """Of tokens by row, those that may end a request."""
        if int(token_ids.max()) < self._least_stop:  # they lie at the end of most vocabularies
            return set()
        stop_ids = self._stop_ids
        return {row for row, token_id in enumerate(token_ids.tolist()) if token_id in stop_ids}

    def take_due(self, number: int) -> list[int]:
        """Arrival indices of those whose token of this plan has to be looked at; asked once."""
        return self._due.pop(number, _NOBODY)

    def looked_at(self, stay: Stay, number: int) -> None:
        """The token of that plan of a stay that goes on has been settled by itself."""
        _add(self._due, number + 1 + (stay.next_check - len(stay.tokens)) // BYTES_PER_ID, stay)

    def num_repeats(self, number: int) -> int:
        """How many more plans have these rows, and no others, while no token has to be looked at.

        Args:
            number: of the plan whose tokens come next, counted from 0.
        """
        until = min([*self._ending, *self._growing]) - self.num_plans
        return max(0, min([until, *(due - number for due in self._due)]))

    def repeat(self, columns: Sequence[bytes], num_plans: int, step_id: int) -> None:
        """So many more plans are made, and as many settled.

        Args:
            columns: by row, what those settled have sampled, as u32.
            num_plans: at most `num_repeats`.
            step_id: of the last of them.
        """
        self.num_plans += num_plans
        for stay in self.stays:
            stay.num_planned += num_plans
            stay.last_step = step_id
        deque(map(iadd, self._tokens, columns), maxlen=0)

    def _expect(self, stop_ids: frozenset[int]) -> None:
        """These may end a request."""
        self._stop_ids = stop_ids
        self._least_stop = min(stop_ids, default=2**32)

    def _note(self, stay: Stay) -> None:
        """When somebody who has just come will be due, grow and end."""
        number, num_planned = self.num_plans, stay.num_planned
        num_unchecked = stay.next_check // BYTES_PER_ID - num_planned - 1
        _add(self._due, number + max(0, num_unchecked), stay)
        _add(self._growing, number + max(0, stay.plain_until - num_planned), stay)
        _add(self._ending, number + stay.max_planned - num_planned, stay)


def _add(by_number: _ByNumber, number: int, stay: Stay) -> None:
    by_number.setdefault(number, []).append(stay.sequence.arrival_index)


@lru_cache(maxsize=1024)
def _ones(num_rows: int) -> bytes:
    return np.ones(num_rows, np.int32).tobytes()


def _row_of(indices: list[int], arrival_index: int) -> int | None:
    row = bisect_left(indices, arrival_index)
    return row if row < len(indices) and indices[row] == arrival_index else None


def _stop_ids_of(stays: Iterable[Stay]) -> frozenset[int]:
    return frozenset().union(*{stay.stop_ids for stay in stays})
