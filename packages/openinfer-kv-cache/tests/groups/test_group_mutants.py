"""The random programs over four groups catch deliberate faults in the cache."""

import pytest

from openinfer_kv_cache import BlockPool, LeaseUsed, NotIdle
from openinfer_kv_cache._steps import StepLedger
from openinfer_kv_cache.arena._arena import Arena, SlabPool, _SpareSlabs
from openinfer_kv_cache.groups._grouped_match import GroupedMatch
from openinfer_kv_cache.groups._recurrent_state import StateRow
from openinfer_kv_cache.groups._resume_points import ResumePoints
from openinfer_kv_cache.groups._window_blocks import WindowBlocks
from openinfer_kv_cache.pool import _runs
from openinfer_kv_cache.pool._runs import ChainRuns


def free_at_once(self, blocks, step_id):
    blocks.release()


def drop_early(self, num_computed):
    RELEASE_PASSED(self, num_computed + 2)


def drop_planned(self, keys, num_known):
    seals = SEAL_KNOWN(self, keys, num_known)
    self.publish()
    self.num_landed = num_known // self.tokens_per_block
    self._release_passed(num_known)
    return seals


def let_go_of_source(self, step_id, keys, end, reach, copies):
    copies = PLAN(self, step_id, keys, end, reach, copies)
    if copies.before:
        self._source.close()
        self._source = None
    return copies


def copy_anywhere(self, step_id, keys, end, reach, copies):
    if self._points is not None and reach is None:
        reach = self._points.stop_after(self._passed)
        reach = None if reach is None or reach > end else reach
    return PLAN(self, step_id, keys, end, reach, copies)


def index_early(self, keys, num_computed, *, is_cacheable):
    SETTLE(self, keys, keys.num_tokens + 4, is_cacheable=is_cacheable)


def lose_quietly(self, slab):
    unindex, self.unindex = self.unindex, lambda ids: None
    LOSE(self, slab)
    self.unindex = unindex


def lose_but_keep_free(self, slab):
    num_free = self._num_free
    LOSE(self, slab)
    self._num_free = num_free


def count_no_release(self, idle):
    BlockPool._make_idle(self, idle)


def lend_twice(self, index, donor, spares):
    if donor is None:
        self.pools[index].gain(self._free[-1])
    else:
        MOVE_TO(self, index, donor, spares)


def spare_everything(self, needs):
    for index, need in enumerate(needs):
        while need > self.pools[index].num_available:
            spares = _SpareSlabs(self.pools, [pool.num_idle_slabs for pool in self.pools], 1)
            donor = self._lowest(index, spares)
            if donor is None and not self._free:
                return False
            self._move_to(index, donor, spares)
    return True


RELEASE_PASSED = WindowBlocks._release_passed
SEAL_KNOWN = WindowBlocks.seal_known
PLAN, SETTLE = StateRow.plan, StateRow.settle
LOSE = SlabPool.lose
MOVE_TO = Arena._move_to

MUTANTS = {
    "frees at once": (StepLedger, "park", free_at_once),
    "drops what the window sees": (WindowBlocks, "_release_passed", drop_early),
    "drops when planned": (WindowBlocks, "seal_known", drop_planned),
    "hits half a window": (GroupedMatch, "_seen_whole", lambda self, g, p, chain, at: at),
    "hits without a state": (GroupedMatch, "_last_checkpoint", lambda self, p, chain, at: at),
    "lets go of a state to be copied": (StateRow, "plan", let_go_of_source),
    "copies states at any position": (StateRow, "plan", copy_anywhere),
    "indexes states too early": (StateRow, "settle", index_early),
    "moves cached blocks": (SlabPool, "lose", lose_quietly),
    "moves free blocks": (SlabPool, "lose", lose_but_keep_free),
    "forgets who rests": (SlabPool, "_make_idle", count_no_release),
    "lends a slab twice": (Arena, "_move_to", lend_twice),
    "takes what another needs": (Arena, "try_provide", spare_everything),
    "keeps no tail": (StateRow, "_release_tail", lambda self: None),
    "forgets no place of a block": (ChainRuns, "remove", lambda self, ids: None),
    "takes runs to their end": (_runs, "_num_equal", lambda own, keys, at, most: most),
    "finds no resume points": (ResumePoints, "stop_after", lambda self, position: None),
}


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_programs_catch(monkeypatch, run_group_programs, name):
    monkeypatch.setattr(*MUTANTS[name])
    with pytest.raises((AssertionError, NotIdle, LookupError, LeaseUsed, ValueError)):
        run_group_programs()
