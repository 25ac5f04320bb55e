"""A naive model of executor and memory around four groups in one arena, and random programs.

The memory is the arena in pieces of 128 bytes, so groups that get the same bytes destroy each
other's entries. Steps execute when they complete: copies into rows, reads, writes, copies out of
rows. A copy stream overwrites all free memory at any time.
"""

from fractions import Fraction

import numpy as np
import pytest

from openinfer_kv_cache import (
    CacheGroup,
    FrequencyEviction,
    KVCache,
    MutableLease,
    Plane,
    Resume,
    plan_slabs,
)
from openinfer_testing.programs import CacheWorld, ProgramRow, ProgramWork, random_programs

MAX_TOKENS = 36
PIECE = 128
WINDOW = 5
NUM_OPERATIONS = 10

FULL, QUARTER, NEAR, STATE = range(4)
GROUPS = (
    CacheGroup(
        name="full", tokens_per_block=2, planes=(Plane(name="kv", bytes_per_token=PIECE // 2),)
    ),
    CacheGroup(
        name="compressed",
        tokens_per_block=4,
        entries_per_token=Fraction(1, 4),
        planes=(Plane(name="latent", bytes_per_token=PIECE),),
    ),
    CacheGroup(
        name="near",
        kind="window",
        window=WINDOW,
        tokens_per_block=2,
        planes=(Plane(name="kv", bytes_per_token=PIECE),),
    ),
    CacheGroup(
        name="state",
        kind="state",
        tokens_per_block=4,
        planes=(Plane(name="s", bytes_per_token=4 * PIECE),),
        resume=Resume(every_tokens=8, output_tokens=4),
    ),
)


class GroupedWorld(CacheWorld):
    def __init__(self, num_slabs=12, max_steps=3, eviction=None):
        self.layout = plan_slabs(GROUPS)
        assert self.layout.blocks_per_slab == (4, 4, 2, 1)
        super().__init__(KVCache(GROUPS, num_slabs=num_slabs, eviction=eviction), max_steps)
        self.arena = self.cache._space._arena
        self.memory = [None] * (num_slabs * 4)
        self.copies = []
        self.num_hits = self.num_restores = self.num_checkpoints = self.num_branches = 0
        self.said = []
        """Tokens of every request; they grow as output is sampled."""
        for pool in self.arena.pools:
            if pool._runs is not None:
                pool._runs.min_blocks, pool._runs.max_spare = 1, 4
        self.operations = (
            self.begin,
            self.admit,
            self.schedule,
            self.schedule,
            self.drive,
            self.complete,
            self.finish,
            self.preempt,
            self.reset,
            self.copy,
        )
        assert len(self.operations) == NUM_OPERATIONS

    def run(self, program):
        for index, (operation, a, b) in enumerate(program):
            self.operations[operation % NUM_OPERATIONS](a, b)
            self.scribble_free()
            if index % 4 == 0:
                self.check()
        self.num_moves = self.arena.num_moves
        self.num_evictions = self.cache.stats().num_evictions
        self.wind_down()

    # memory

    def pieces(self, group, block):
        stride = self.layout.block_strides[group] // PIECE
        return range(block * stride, (block + 1) * stride)

    def read(self, group, block):
        found = [self.memory[piece] for piece in self.pieces(group, block)]
        assert all(each is found[0] for each in found), "another group wrote over a block"
        return found[0]

    def overwrite(self, group, block, content):
        for piece in self.pieces(group, block):
            self.memory[piece] = content

    def entry(self, group, table, position):
        size = GROUPS[group].tokens_per_block
        block = self.read(group, table[position // size])
        return block.get(position) if isinstance(block, dict) else block

    # operations

    def admit(self, a, b):
        if not self.is_planning:
            self.begin(a, b)
        if not self.is_planning or len(self.rows) > 3:
            return
        if self.waiting and a % 2:
            row = self.waiting.pop(0)
        else:
            tokens = [(a >> (i % 3)) & 1 for i in range(1 + b % 9 * (1 + b // 32))]
            if self.said and a % 3:  # a prefix of an earlier request, with other tokens after it
                known = self.said[b % len(self.said)]
                tokens = [*known[: (5 * a + b) % len(known)], *tokens[:5]][:24]
            hints = np.array([a % 21, b % 7], np.uint32)
            keys = self.cache.keys(np.array(tokens, np.uint32), boundaries=hints)
            row = ProgramRow(tokens, keys, luck=b)
        expected = self.longest_resume(row.keys)
        assert self.cache.peek(row.keys) == expected
        if not any(row.tokens is each for each in self.said):
            self.said.append(row.tokens)
        hit = self.cache.match(row.keys)
        assert hit.num_tokens == expected < len(row.tokens)
        self.num_branches += any(
            each[: expected + 4] != row.tokens[: expected + 4]
            for each in self.said
            if expected and each[:expected] == row.tokens[:expected]
        )
        row.tables = [ids.tolist() for ids in hit.block_ids]
        num_dropped = expected // 2 - len(row.tables[NEAR])
        row.tables[NEAR] = [None] * num_dropped + row.tables[NEAR]
        beyond = self.cache.num_blocks_beyond(expected, len(row.tokens))
        self.opened(row, self.cache.open(row.keys, hit))
        assert beyond >= row.sequence.num_blocks_short(len(row.tokens))
        self.num_hits += bool(expected)
        self.schedule(len(self.rows) - 1, b)

    def longest_resume(self, keys):
        """Returns the hit by brute force: tries every position from the end in every group."""
        index = [pool._index for pool in self.arena.pools]
        for position in range((keys.num_tokens - 1) // 4 * 4, 0, -4):
            ends = [range(g.tokens_per_block, position + 1, g.tokens_per_block) for g in GROUPS]
            seen = [end for end in ends[NEAR] if end > position - WINDOW + 1]
            wanted = (ends[FULL], ends[QUARTER], seen, [position])
            if all(
                keys.slice(end // 2 - 1, end // 2)[0] in index[group]
                for group in range(4)
                for end in wanted[group]
            ):
                return position
        return 0

    def schedule(self, a, b):
        row = self.unplanned_row(a)
        if row is None:
            return
        step = self.steps[-1]
        num_left, reach = len(row.tokens) - row.end, None
        if num_left > 0:
            end = row.end + 1 + b % num_left
            if b % 3:
                end = self.cache.chunk_end(row.keys, row.end, end)
            kind = "chunk"
        elif len(row.tokens) < MAX_TOKENS:
            kind, end = "decode", row.end + 1 + (b % 3 if a & 16 else 0)
            if end == row.end + 1 and not row.num_drafting:
                reach = end
        else:
            return
        num, reservation = end - row.end, None
        if end > row.sequence.capacity or b % 2:
            before = self.cache.stats()
            fits = row.sequence.num_blocks_short(end) <= self.cache.num_available_blocks
            reservation = row.sequence.try_schedule(end, reach=reach)
            if reservation is None:
                assert not fits
                assert self.cache.stats() == before, "no room changes nothing"
                return
            self.grant(row, reservation)
            assert end <= row.sequence.capacity
        row.num_drafting += num > 1 and kind == "decode"
        row.end = end
        row.steps.append(step.step_id)
        step.works.append(ProgramWork(row, kind, num, reservation, b % num, bool(a & 4)))

    def drive(self, a, b):
        """Plans one step with every row, and completes the previous step."""
        self.begin(a, b)
        for index in range(len(self.rows)):
            self.schedule((a & 48) + index if len(self.rows) == 1 else index, b)
        self.complete(a, b)

    def held(self):
        """Returns the pieces of memory that a row, a step in flight or a copy may still read or
        write."""
        tables = [row.tables for row in self.rows] + [tables for _, tables in self.parked]
        kept = set()
        for row in self.rows:
            for group, ids in enumerate(row.sequence.block_ids):
                for block in ids.tolist():
                    kept.update(self.pieces(group, block))
        for each in tables[len(self.rows) :]:
            for group in (FULL, QUARTER, STATE):
                for block in each[group]:
                    kept.update(self.pieces(group, block))
        for group, lease in self.copies:
            for block in lease.ids.tolist():
                kept.update(self.pieces(group, block))
        return kept

    def grant(self, row, reservation):
        held = self.held()
        for group, ids in enumerate(reservation.new_block_ids):
            for block in ids.tolist():
                own = set(self.pieces(group, block))
                assert own <= held, "granted blocks are in the table"
                self.overwrite(group, block, "scribble")
                row.tables[group].append(block)
        everybody = [
            piece
            for each in self.rows
            for group, ids in enumerate(each.sequence.block_ids)
            for block in ids.tolist()
            if each is row or self.arena.pools[group]._refcounts[block] == 1
            for piece in self.pieces(group, block)
        ]
        assert len(everybody) == len(set(everybody)), "a block has two owners"
        for copy in (*reservation.copies.before, *reservation.copies.after):
            assert (copy.group, row.tables[STATE][0]) in (
                (STATE, copy.source),
                (STATE, copy.target),
            )
        for copy in reservation.copies.after:
            assert copy.target != row.tables[STATE][0]
            self.overwrite(STATE, copy.target, "scribble")

    def complete(self, a, b):
        if not self.steps:
            return
        step = self.pop_step()
        for work in step.works:
            for copy in work.reservation.copies.before if work.reservation else ():
                found = self.read(STATE, copy.source)
                assert found == work.row.content(copy.position - 1), "a stale state is restored"
                self.overwrite(STATE, copy.target, found)
                self.num_restores += 1
        for work in step.works:
            self.check_reads(work.row)
        before = {row: row.position for row in self.rows}
        sampled = {work: self.forward(work, step.step_id) for work in step.works}
        for work in step.works:
            for copy in work.reservation.copies.after if work.reservation else ():
                assert work.row.position == copy.position, "a copy at another position"
                self.overwrite(STATE, copy.target, self.read(STATE, copy.source))
                self.num_checkpoints += 1
        self.cache.complete_step(step.step_id)
        assert before.keys() <= set(self.rows)
        for work in step.works:
            row = work.row
            row.unsettled += sampled[work]
            if row.sequence is not None and not work.is_lazy:
                row.settle()
        self.unpark(step.step_id)

    def check_reads(self, row):
        for position in range(row.position):
            content = row.content(position)
            assert self.entry(FULL, row.tables[FULL], position) == content
            assert self.entry(QUARTER, row.tables[QUARTER], position) == content
            if position >= row.position - WINDOW + 1:
                assert self.entry(NEAR, row.tables[NEAR], position) == content, "stale window"
        if row.position:
            state = self.read(STATE, row.tables[STATE][0])
            assert state == row.content(row.position - 1), "stale state"

    def forward(self, work, step_id):
        row, start = work.row, work.row.position
        sampled = []
        if work.kind == "chunk":
            num_good = work.num_tokens
            if start + num_good == len(row.tokens):
                sampled = [row.answer(start)]
        else:
            num_good = 1 + work.num_accepted
            sampled = [row.answer(start + i) for i in range(num_good)]
        row.tokens += sampled
        for group in (FULL, QUARTER, NEAR):
            size = GROUPS[group].tokens_per_block
            for position in range(start, start + work.num_tokens):
                block = row.tables[group][position // size]
                found = self.read(group, block)
                entries = dict(found) if isinstance(found, dict) else {}
                is_good = position < start + num_good
                entries[position] = row.content(position) if is_good else "draft"
                self.overwrite(group, block, entries)
        row.position = start + num_good
        self.overwrite(STATE, row.tables[STATE][0], row.content(row.position - 1))
        row.end -= work.num_tokens - num_good
        row.num_drafting -= work.num_tokens > 1 and work.kind == "decode"
        row.steps.remove(step_id)
        return sampled

    def copy(self, a, b):
        if self.copies and a % 2:
            self.copies.pop(b % len(self.copies))[1].close()
            return
        group = a % 4
        lease = MutableLease.try_take(self.arena.pools[group], 1 + b % 2)
        if lease is not None:
            self.copies.append((group, lease))
            for block in lease.ids.tolist():
                self.overwrite(group, block, "load")

    # checks

    def scribble_free(self):
        owned = {slab for pool in self.arena.pools for slab in np.flatnonzero(pool._is_owned)}
        for slab in set(range(self.arena.num_slabs)) - owned:
            self.memory[4 * slab : 4 * slab + 4] = ["scribble"] * 4
        for group, pool in enumerate(self.arena.pools):
            num = self.layout.block_strides[group] // PIECE
            for block in pool._free[: pool.num_free].tolist():
                self.memory[num * block : num * (block + 1)] = ["scribble"] * num

    def check(self):
        pools = self.arena.pools
        owners = np.stack([pool._is_owned for pool in pools]).sum(axis=0)
        assert owners.max() <= 1, "a slab has two owners"
        assert self.arena.num_free == int((owners == 0).sum())
        for pool in pools:
            free = pool._free[: pool.num_free]
            assert pool._is_owned[free // pool.blocks_per_slab].all()
            assert (pool._refcounts[free] == 0).all()
            held = pool._refcounts.reshape(-1, pool.blocks_per_slab) > 0
            assert pool._num_held.tolist() == held.sum(axis=1).tolist()
            assert pool.num_blocks == int(pool._is_owned.sum()) * pool.blocks_per_slab
            num_used = int((pool._refcounts > 0).sum())
            assert pool.num_free + pool.num_evictable + num_used == pool.num_blocks, "lost blocks"
        stats = self.cache.stats()
        assert stats.num_free + stats.num_evictable + stats.num_used == stats.num_blocks
        for row in self.rows:
            ids = [each.tolist() for each in row.sequence.block_ids]
            for group, num in enumerate(row.sequence.num_dropped_blocks):
                assert ids[group] == row.tables[group][num:]

    def wind_down(self):
        for row in list(self.rows):
            self.close(row)
        while self.steps:
            self.complete(0, 0)
        while self.copies:
            self.copies.pop()[1].close()
        self.check()
        self.cache.assert_idle()
        for pool in self.arena.pools:
            lease = MutableLease.try_take(pool, self.arena.num_slabs * pool.blocks_per_slab)
            assert lease is not None, "one group can have the whole arena"
            lease.close()
        self.cache.assert_idle()


def frequency():
    return FrequencyEviction(lambda: 0.0)


def draw_programs(num):
    factors = {2: 0.5, 4: 3.0, 6: 0.3, 7: 0.3, 8: 0.3, 9: 0.2}
    return random_programs(num, num_operations=NUM_OPERATIONS, length=140, factors=factors)


def run_all(num=60):
    """Runs programs in arenas of several sizes, and checks that they reach hits, copies and
    moves."""
    counts = np.zeros(6, int)
    for seed, program in enumerate(draw_programs(num)):
        eviction = frequency if seed % 5 == 4 else None
        world = GroupedWorld([40, 8, 16, 40][seed % 4], eviction=eviction)
        world.run(program)
        counts += (
            world.num_hits,
            world.num_restores,
            world.num_checkpoints,
            world.num_evictions,
            world.num_moves,
            world.num_branches,
        )
    assert (counts > num // 60 * np.array([20, 15, 200, 500, 100, 10])).all(), counts


@pytest.fixture(scope="session")
def grouped_world():
    """Returns the class `GroupedWorld`, made with a number of slabs; `run(program)` runs it."""
    return GroupedWorld


@pytest.fixture(scope="session")
def group_programs():
    """Returns the function that draws programs."""
    return draw_programs


@pytest.fixture(scope="session")
def run_group_programs():
    """Returns the function that runs many programs and checks what they reached."""
    return run_all
