"""Decode rows that go on as they are: found once, planned and settled many times."""

from collections import deque
from operator import iadd

from openinfer_scheduler._plan import PlannedRow
from openinfer_scheduler._prefix_probe import BYTES_PER_ID
from openinfer_scheduler._sequence import SequenceState, Stay


class SteadyRows:
    """Running sequences that all decode one token a plan and need no block for some plans more.

    As long as nobody comes, leaves or is touched otherwise (`SchedulerState.num_changes`), their
    next plan has the same rows, and only the counts of each have to move. To look at 256 sequences
    in turn and find nothing changed would cost more than all else that such a step does.

    Attributes:
        order: the sequences as the policy ranks them.
        stays: theirs, by row.
        rows: of each plan.
        request_ids: theirs.
        stop_ids: ids that end some of them.
        num_plans: how many plans had these rows so far.
    """

    __slots__ = (
        "_due",
        "_num_changes",
        "_num_left",
        "_tokens",
        "num_plans",
        "order",
        "request_ids",
        "rows",
        "stays",
        "stop_ids",
    )

    def __init__(self, order: list[SequenceState], stays: list[Stay], num_changes: int) -> None:
        self.order = order
        self.stays = stays
        self.rows: list[PlannedRow] = [stay.decode_row for stay in stays]
        self.request_ids = [stay.request_id for stay in stays]
        self.stop_ids = frozenset().union(*{stay.stop_ids for stay in stays})
        self.num_plans = 0
        self._num_changes = num_changes
        self._num_left = min([stay.plain_until - stay.num_planned for stay in stays])
        self._tokens = [stay.tokens for stay in stays]
        self._due: dict[int, list[int]] = {}
        """By number of a plan of these rows: those whose token has to be looked at there."""
        for row, stay in enumerate(stays):
            self._note_due(row, stay.next_check // BYTES_PER_ID - stay.num_planned - 1)

    def is_current(self, num_changes: int) -> bool:
        """Whether nobody among them was touched by anything else than plans of these rows."""
        return num_changes == self._num_changes

    def goes_on(self, order: list[SequenceState]) -> bool:
        """Whether the plan being made has these rows, if they are current."""
        return self._num_left > 0 and order == self.order

    def advance(self, step_id: int) -> None:
        """The plan being made has these rows."""
        self._num_left -= 1
        self.num_plans += 1
        for stay in self.stays:
            stay.num_planned += 1
            stay.last_step = step_id

    def take_tokens(self, columns: list[bytes], number: int) -> list[int]:
        """Appends what the plan of that number has sampled, except for rows to be looked at.

        Args:
            columns: the rows' tokens, as u32 each; none is in `stop_ids`. More may follow.
            number: counted from 0.

        Returns:
            Rows whose token was not appended, because it may end the request, or the cache wants
            to hear of it.
        """
        due = self._due.pop(number, [])
        tokens = self._tokens
        if due:
            tokens = tokens.copy()
            for row in due:
                tokens[row] = bytearray()
        deque(map(iadd, tokens, columns), maxlen=0)
        return due

    def looked_at(self, row: int, number: int) -> None:
        """The token of a row that was due has been settled."""
        stay = self.stays[row]
        num_known = len(stay.tokens)
        self._note_due(row, number + 1 + (stay.next_check - num_known) // BYTES_PER_ID)

    def _note_due(self, row: int, number: int) -> None:
        self._due.setdefault(max(number, 0), []).append(row)
