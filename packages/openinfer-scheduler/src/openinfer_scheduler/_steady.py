"""Decode rows that go on as they are: found once, planned and settled many times."""

from collections import deque
from collections.abc import Sequence
from operator import iadd

import numpy as np
import numpy.typing as npt

from openinfer_scheduler._plan import PlannedRow, TokenIds
from openinfer_scheduler._prefix_probe import BYTES_PER_ID
from openinfer_scheduler._sequence import Stay

_NO_ROWS: list[int] = []


class SteadyRows:
    """Running sequences that all decode one token a plan, for some plans more.

    As long as nobody comes, leaves or is touched otherwise (`SchedulerState.num_changes`), their
    next plan has the same rows, but for the few that take blocks, and only the counts of each have
    to move. To look at 256 sequences in turn and find nothing changed would cost more than all else
    that such a step does. Nor does anybody ask the policy for an order: everyone is served.

    Attributes:
        stays: theirs, by row.
        rows: of each plan, where no row takes blocks.
        request_ids: theirs.
        num_plans: how many plans had these rows so far.
    """

    __slots__ = (
        "_due",
        "_growing",
        "_last_plan",
        "_least_stop",
        "_num_changes",
        "_ones",
        "_stop_ids",
        "_tokens",
        "num_plans",
        "request_ids",
        "rows",
        "stays",
    )

    def __init__(self, stays: list[Stay], num_changes: int) -> None:
        self.stays = stays
        self.rows: list[PlannedRow] = [stay.decode_row for stay in stays]
        self.request_ids = [stay.request_id for stay in stays]
        self._stop_ids = frozenset().union(*{stay.stop_ids for stay in stays})
        self._least_stop = min(self._stop_ids, default=2**32)
        self._ones = np.ones(len(stays), np.int32).tobytes()
        self.num_plans = 0
        self._num_changes = num_changes
        self._last_plan = min([stay.max_planned - stay.num_planned for stay in stays])
        self._tokens = [stay.tokens for stay in stays]
        self._due: dict[int, list[int]] = {}
        """By number of a plan of these rows: those whose token has to be looked at there."""
        self._growing: dict[int, list[int]] = {}
        """By number of a plan of these rows: those that need blocks there."""
        for row, stay in enumerate(stays):
            self._note_due(row, stay.next_check // BYTES_PER_ID - stay.num_planned - 1)
            self.note_growth(row)

    def is_current(self, num_changes: int) -> bool:
        """Whether nobody among them was touched by anything else than plans of these rows."""
        return num_changes == self._num_changes

    @property
    def is_over(self) -> bool:
        """Whether one of them has all the rows it needs."""
        return self.num_plans >= self._last_plan

    @property
    def has_stop_ids(self) -> bool:
        """Whether some id may end a request."""
        return bool(self._stop_ids)

    def take_growing(self) -> list[int]:
        """Rows that need blocks in the plan being made; asked once a plan."""
        return self._growing.pop(self.num_plans, _NO_ROWS) if self._growing else _NO_ROWS

    def note_growth(self, row: int) -> None:
        """Before the plan being made is counted: the row has blocks up to its `plain_until`."""
        stay = self.stays[row]
        number = self.num_plans + max(1, stay.plain_until - stay.num_planned)
        self._growing.setdefault(number, []).append(row)

    def advance(self, step_id: int) -> None:
        """The plan being made has these rows."""
        self.num_plans += 1
        for stay in self.stays:
            stay.num_planned += 1
            stay.last_step = step_id

    def is_one_each(self, counts: npt.NDArray[np.int32]) -> bool:
        """Whether these are the counts of a step that gave every row a token."""
        return counts.tobytes() == self._ones

    def has_stop(self, token_ids: TokenIds) -> bool:
        """Whether one of these tokens may end a request."""
        if int(token_ids.max()) < self._least_stop:  # they lie at the end of most vocabularies
            return False
        return not self._stop_ids.isdisjoint(token_ids.tolist())

    def take_tokens(self, columns: Sequence[bytes], number: int) -> list[int]:
        """Appends what the plan of that number has sampled, except for rows to be looked at.

        Args:
            columns: the rows' tokens, as u32 each; none ends a request. More may follow.
            number: counted from 0.

        Returns:
            Rows whose token was not appended, because it may end the request, or the cache wants
            to hear of it.
        """
        due = self._due.pop(number, _NO_ROWS)
        tokens = self._tokens
        if due:
            tokens = tokens.copy()
            for row in due:
                tokens[row] = bytearray()
        deque(map(iadd, tokens, columns), maxlen=0)
        return due

    def num_repeats(self, number: int) -> int:
        """How many more plans have these rows, and no others, while no token has to be looked at.

        Args:
            number: of the plan whose tokens come next, counted from 0.
        """
        until = min([self._last_plan, *self._growing]) - self.num_plans
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

    def looked_at(self, row: int, number: int) -> None:
        """The token of a row that was due has been settled."""
        stay = self.stays[row]
        num_known = len(stay.tokens)
        self._note_due(row, number + 1 + (stay.next_check - num_known) // BYTES_PER_ID)

    def _note_due(self, row: int, number: int) -> None:
        self._due.setdefault(max(number, 0), []).append(row)
