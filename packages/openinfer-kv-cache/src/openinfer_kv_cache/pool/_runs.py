"""Blocks of one chain that were indexed one behind the other: few look-ups find a long prefix.

Keys are chained: two chains with the same key at one place are the same up to there. A run knows
its keys and blocks in order, and every block its place: the run in which it was indexed, and where.
Who leaves the index forgets its place, so what is left of a run is told by comparing numbers.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openinfer_kv_cache.eviction._lru import BlockIds

_MIN_BLOCKS = 8
"""Shorter runs are not worth their bookkeeping."""

_MAX_SPARE = 4096
"""Entries beyond twice the indexed blocks, before those of blocks that are gone are dropped."""

_LOOKED_AT_PER_ADDED = 4
_LOOKED_AT_LEAST = 512
_COST_OF_A_RUN = 32
"""What may be looked at to drop such entries for each that was added, at the least in one call,
and what a run costs besides its entries."""

_NO_BLOCKS = np.empty(0, np.int32)
_MAX_BLOCKS = 1 << 24
"""Of a run; places of one run are numbered from a multiple of it."""


@dataclass(slots=True)
class _Run:
    first_place: int
    ids: BlockIds
    keys: list[bytes]


class ChainRuns:
    """Runs over the block ids `[0, num_blocks)`.

    Attributes:
        min_blocks: a run begins with at least so many.
        max_spare: so many entries beyond twice the indexed blocks may be of blocks that are gone,
            and for a while a few more: they are dropped little by little.
    """

    def __init__(self, num_blocks: int) -> None:
        self.min_blocks, self.max_spare = _MIN_BLOCKS, _MAX_SPARE
        self._places = np.zeros(num_blocks, np.int64)
        """By block, its place; 0: none."""
        self._runs: OrderedDict[int, _Run] = OrderedDict()
        """By first place; those looked at longest ago for blocks that are gone come first."""
        self._starts: dict[bytes, _Run] = {}
        self._newest_place = 0
        self._num_entries = 0

    def add(
        self, ids: BlockIds, keys: Sequence[bytes], above: int | None, num_indexed: int
    ) -> None:
        """Blocks were indexed one behind the other.

        Args:
            ids: in order.
            keys: theirs.
            above: the block before the first; None: there is none, or nobody knows.
            num_indexed: blocks in the index.
        """
        run = None if above is None else self._ending_in(above)
        if run is not None and len(run.ids) + len(ids) < _MAX_BLOCKS:
            place = run.first_place + len(run.ids)
            run.ids = np.concatenate((run.ids, ids))
            run.keys += keys
        elif len(ids) >= self.min_blocks:
            place = self._newest_place = self._newest_place + _MAX_BLOCKS
            self._runs[place] = self._starts[keys[0]] = _Run(place, ids, list(keys))
        else:
            return
        self._places[ids] = np.arange(place, place + len(ids))
        self._num_entries += len(ids)
        self._prune(2 * num_indexed + self.max_spare, len(ids))

    def forget(self, ids: BlockIds) -> None:
        """Blocks are indexed no more."""
        self._places[ids] = 0

    def clear(self) -> None:
        """Nothing is indexed any more."""
        self._places[:] = 0
        self._runs.clear()
        self._starts.clear()
        self._num_entries = 0

    def find(self, keys: Sequence[bytes], most: int) -> BlockIds:
        """The blocks of the first keys, at most so many, as far as runs tell: all are indexed."""
        parts: list[BlockIds] = [_NO_BLOCKS]
        at = 0
        while at < most:
            run = self._starts.get(keys[at])
            if run is None:
                break
            length = min(len(run.ids), most - at)
            if run.keys[length - 1] != keys[at + length - 1]:
                length = _num_equal(run.keys, keys, at, length)
            ids = run.ids[:length]
            is_there = self._places[ids] == np.arange(run.first_place, run.first_place + length)
            if not is_there.all():
                parts.append(ids[: int(is_there.argmin())])
                break
            parts.append(ids)
            at += length
        return np.concatenate(parts)

    def _ending_in(self, block: int) -> _Run | None:
        """The run whose last living block this is."""
        place = int(self._places[block])
        run = self._runs.get(place - place % _MAX_BLOCKS)
        if run is None:
            return None
        behind = place - run.first_place + 1
        if behind > len(run.ids) or run.ids[behind - 1] != block:
            return None
        if behind < len(run.ids):
            if self._places[run.ids[behind]] == place + 1:
                return None  # the chain goes on there, and another one begins here
            self._cut(run, behind)
        return run

    def _cut(self, run: _Run, length: int) -> None:
        """Ends a run early.

        Blocks behind may be indexed still, where one before them was replaced by its twin. They
        have no place any more, or what is indexed behind them would be told of another chain.
        """
        behind = run.ids[length:]
        places = np.arange(run.first_place + length, run.first_place + len(run.ids))
        self._places[behind[self._places[behind] == places]] = 0
        self._num_entries -= len(run.ids) - length
        run.ids = run.ids[:length]
        del run.keys[length:]

    def _prune(self, most: int, num_added: int) -> None:
        """Where there are more entries than `most`, drops some of blocks that are gone.

        Looks at a few times what was added: by far the most are gone then, so they do not heap up,
        and nobody waits until all have been looked at.
        """
        budget = max(_LOOKED_AT_LEAST, _LOOKED_AT_PER_ADDED * num_added)
        while self._num_entries > most and budget > 0:
            place, run = next(iter(self._runs.items()))
            budget -= _COST_OF_A_RUN
            if self._places[run.ids[0]] != place:
                self._num_entries -= len(run.ids)
                del self._runs[place]
                if self._starts[run.keys[0]] is run:
                    del self._starts[run.keys[0]]
                continue
            self._runs.move_to_end(place)
            budget -= len(run.ids)
            is_dead = self._places[run.ids] != np.arange(place, place + len(run.ids))
            if is_dead.any():
                self._cut(run, int(is_dead.argmax()))


def _num_equal(own: Sequence[bytes], keys: Sequence[bytes], at: int, most: int) -> int:
    """How many of the first `most` keys of a run are those from `at` on; the first one is."""
    return bisect_left(range(most), True, key=lambda i: own[i] != keys[at + i])
