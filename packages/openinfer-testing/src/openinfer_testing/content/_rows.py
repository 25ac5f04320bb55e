"""Rows of the content executor, and the content of cache groups other than the first."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from openinfer_contract import GenerateRequest
from openinfer_kv_cache import BlockCopy, CacheGroup
from openinfer_scheduler import BlockIds, RowStart
from openinfer_testing.content._model import Entries


@dataclass
class Row:
    """State of one slot on the device."""

    request: GenerateRequest
    given: list[int]
    num_output: int
    seed: int
    tables: list[list[int | None]]
    """The block table of each group. An entry is None after its block has left the window."""
    num_entries: int
    num_before: int
    """Number of tokens before the output."""
    last_token: int | None = None

    def append(self, new_block_ids: Sequence[BlockIds]) -> None:
        """Appends the blocks that a plan adds."""
        for table, ids in zip(self.tables, new_block_ids, strict=True):
            table += ids.tolist()


def row_of(start: RowStart, groups: Sequence[CacheGroup]) -> Row:
    """Returns the row with which a sequence starts."""
    tables: list[list[int | None]] = []
    for group, ids in zip(groups, start.block_ids, strict=True):
        num = 0 if group.kind == "state" else start.num_cached_tokens // group.tokens_per_block
        assert group.kind == "window" or len(ids) == num, (
            "a prefix hit must end with a block of every group"
        )
        tables.append([*([None] * (num - len(ids))), *ids.tolist()])
    return Row(
        start.request,
        start.token_ids.tolist(),
        start.num_output_tokens,
        start.seed,
        tables,
        start.num_cached_tokens,
        len(start.token_ids) - start.num_output_tokens,
    )


class OtherGroups:
    """Content of all cache groups but the first.

    The first group's entries define the right content.

    A position of another full group or of a window holds the same entry as in the first group. A
    state holds the newest entry.

    Attributes:
        num_restores: Number of states copied into rows so far.
        num_checkpoints: Number of states copied out of rows so far.
    """

    def __init__(self, groups: Sequence[CacheGroup]) -> None:
        self._groups = [(i, group) for i, group in enumerate(groups) if i]
        self._entries: dict[tuple[int, int, int], int] = {}
        self.num_restores = self.num_checkpoints = 0

    def restore(self, copies: Iterable[BlockCopy]) -> None:
        """Copies states before the forward."""
        self.num_restores += self._copy(copies)

    def checkpoint(self, copies: Iterable[BlockCopy]) -> None:
        """Copies states after the forward."""
        self.num_checkpoints += self._copy(copies)

    def is_right(self, row: Row, entries: Entries) -> bool:
        """Returns whether the row's next forward finds the right entries."""
        end = row.num_entries
        for index, group in self._groups:
            table = row.tables[index]
            if group.kind == "state":
                if end and self._read(index, table[0], 0) != int(entries[-1]):
                    return False
                continue
            start = 0 if group.window is None else max(0, end - group.window + 1)
            size = group.tokens_per_block
            for position in range(start, end):
                found = self._read(index, table[position // size], position % size)
                if found != int(entries[position]):
                    return False
        return True

    def write(self, row: Row, start: int, entries: Entries, num_right: int) -> None:
        """Writes the entries from `start` on.

        A state gets the entry after `num_right` positions.
        """
        for index, group in self._groups:
            table = row.tables[index]
            if group.kind == "state":
                assert len(table) == 1, "a state has one row"
                self._write(index, table[0], 0, int(entries[num_right - 1]))
                continue
            size = group.tokens_per_block
            for position in range(start, len(entries)):
                block = table[position // size]
                self._write(index, block, position % size, int(entries[position]))

    def _copy(self, copies: Iterable[BlockCopy]) -> int:
        num = 0
        for copy in copies:
            found = self._entries.get((copy.group, copy.source, 0), 0)
            self._entries[copy.group, copy.target, 0] = found
            num += 1
        return num

    def _read(self, group: int, block: int | None, offset: int) -> int:
        assert block is not None, "a forward reads a block that has left the window"
        return self._entries.get((group, block, offset), 0)

    def _write(self, group: int, block: int | None, offset: int, entry: int) -> None:
        assert block is not None, "a forward writes a block that has left the window"
        self._entries[group, block, offset] = entry
