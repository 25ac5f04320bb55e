"""Runs: consecutive blocks of one chain, stored together so that long prefixes are found quickly.

Keys are chained, so two chains with the same key at one position are equal up to there. A run
stores its keys and block ids in order. Each block stores its place: its run and its index in it. A
block that leaves the index loses its place, so comparing places shows how much of a run is still
valid.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from openinfer_kv_cache.eviction._lru import BlockIds

_MIN_BLOCKS = 8
"""Minimum length of a new run; shorter ones are not worth their bookkeeping."""

_MAX_SPARE = 4096
"""Stale entries allowed beyond twice the number of indexed blocks, before pruning starts."""

_LOOKED_AT_PER_ADDED = 4
_LOOKED_AT_LEAST = 512
_COST_OF_A_RUN = 32
"""Pruning budget of one call: entries examined for each entry added, the minimum, and the fixed
cost of examining a run, in entries."""

_NO_BLOCKS = np.empty(0, np.int32)
_MAX_BLOCKS = 1 << 24
"""Upper bound of a run's length. The places of a run are numbered from a multiple of it."""


@dataclass(slots=True)
class _Run:
    first_place: int
    ids: BlockIds
    keys: list[bytes]


class ChainRuns:
    """Runs over the block ids `[0, num_blocks)`.

    Attributes:
        min_blocks: minimum length of a new run.
        max_spare: number of stale entries allowed beyond twice the indexed blocks. Pruning is
            incremental, so there may be a few more for a while.
    """

    def __init__(self, num_blocks: int) -> None:
        self.min_blocks, self.max_spare = _MIN_BLOCKS, _MAX_SPARE
        self._places = np.zeros(num_blocks, np.int64)
        """Place of each block; 0 for none."""
        self._runs: OrderedDict[int, _Run] = OrderedDict()
        """Runs by first place; the run that was examined by pruning longest ago comes first."""
        self._starts: dict[bytes, _Run] = {}
        self._newest_place = 0
        self._num_entries = 0

    def add(
        self, ids: BlockIds, keys: Sequence[bytes], above: int | None, num_indexed: int
    ) -> None:
        """Records consecutive blocks that were indexed.

        Args:
            ids: the blocks in order.
            keys: their keys.
            above: the block before the first; None if there is none or it is unknown.
            num_indexed: number of blocks in the index.
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

    def remove(self, ids: BlockIds) -> None:
        """Records that blocks have left the index."""
        self._places[ids] = 0

    def clear(self) -> None:
        """Removes all runs."""
        self._places[:] = 0
        self._runs.clear()
        self._starts.clear()
        self._num_entries = 0

    def find(self, keys: Sequence[bytes], most: int) -> BlockIds:
        """Returns the blocks of the first keys, at most `most`, as far as runs cover them."""
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
        """Returns the run whose last valid block is `block`; None if there is none."""
        place = int(self._places[block])
        run = self._runs.get(place - place % _MAX_BLOCKS)
        if run is None:
            return None
        length = place - run.first_place + 1
        if length > len(run.ids) or run.ids[length - 1] != block:
            return None
        if length < len(run.ids):
            if self._places[run.ids[length]] == place + 1:
                return None  # the run already continues: the new blocks are a branch of the chain
            self._cut(run, length)
        return run

    def _cut(self, run: _Run, length: int) -> None:
        """Truncates a run.

        The blocks cut off may still be indexed, if a block before them was replaced by a duplicate.
        They lose their place, so that blocks indexed after them do not join this run.
        """
        rest = run.ids[length:]
        places = np.arange(run.first_place + length, run.first_place + len(run.ids))
        self._places[rest[self._places[rest] == places]] = 0
        self._num_entries -= len(run.ids) - length
        run.ids = run.ids[:length]
        del run.keys[length:]

    def _prune(self, most: int, num_added: int) -> None:
        """If there are more entries than `most`, removes some of the stale ones.

        Examines a few times as many entries as were added. Most entries are stale when this runs,
        so they do not accumulate, and no call has to examine all of them.
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
            is_stale = self._places[run.ids] != np.arange(place, place + len(run.ids))
            if is_stale.any():
                self._cut(run, int(is_stale.argmax()))


def _num_equal(own: Sequence[bytes], keys: Sequence[bytes], at: int, most: int) -> int:
    """Returns how many of a run's first `most` keys equal the keys from `at` on; at least one."""
    return bisect_left(range(most), True, key=lambda i: own[i] != keys[at + i])
