"""A naive world around the cache: rows, an executor that is late, and memory that shows misuse.

Memory holds, per position, which tokens it was computed from. Steps execute when they complete, and
all reads of a step come before its writes. A block is scribbled over the moment it is handed out,
and a copy stream, which waits for no step, scribbles over blocks whenever they are free and loads
into blocks that it leases: so a block freed, shared or sealed too early is read with wrong content.
"""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import pytest

from openinfer_kv_cache import (
    BlockKeys,
    CacheGroup,
    KVCache,
    MutableLease,
    Plane,
    Reservation,
    SequenceCache,
)

MAX_TOKENS = 26


def make_cache(num_blocks=16, tokens_per_block=2, **options):
    plane = Plane(name="kv", bytes_per_token=64)
    group = CacheGroup(name="full", tokens_per_block=tokens_per_block, planes=(plane,))
    return KVCache((group,), num_blocks=num_blocks, **options)


@dataclass(eq=False)
class Row:
    adapter: int
    tokens: list[int]
    keys: BlockKeys
    sequence: SequenceCache | None = None
    version: int = 0
    opened_in: int = 0
    position: int = 0  # computed, as the device knows
    end: int = 0  # upper bound over steps in flight
    table: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    unsettled: list[int] = field(default_factory=list)

    def content(self, position):
        return (self.version, self.adapter, tuple(self.tokens[: position + 1]))


@dataclass(eq=False)
class Work:
    row: Row
    kind: str
    num_tokens: int
    reservation: Reservation | None
    num_accepted: int
    is_lazy: bool


@dataclass(eq=False)
class Step:
    step_id: int
    works: list[Work] = field(default_factory=list)


class World:
    """Runs programs: lists of (operation, a, b)."""

    def __init__(self, num_blocks=16, tokens_per_block=2, max_steps=3):
        self.cache = make_cache(num_blocks, tokens_per_block)
        self.size = tokens_per_block
        self.max_steps = max_steps
        self.memory = [[None] * tokens_per_block for _ in range(num_blocks)]
        self.rows: list[Row] = []
        self.waiting: list[Row] = []
        self.parked: list[tuple[int, list[int]]] = []
        self.steps: list[Step] = []
        self.copies: list[MutableLease] = []
        self.chains: list[BlockKeys] = []
        self.next_step = 1
        self.version = 0
        self.num_reverts = 0
        self.num_hits = 0
        self.is_planning = False
        self.operations = (
            self.begin,
            self.admit,
            self.schedule,
            self.schedule,
            self.schedule,
            self.complete,
            self.finish,
            self.preempt,
            self.revert_row,
            self.revert_step,
            self.reset,
            self.copy,
        )

    def run(self, program):
        for operation, a, b in program:
            self.operations[operation % len(self.operations)](a, b)
            self.check()
        self.wind_down()

    def begin(self, a, b):
        if len(self.steps) < self.max_steps:
            self.cache.begin_step(self.next_step)
            self.steps.append(Step(self.next_step))
            self.next_step += 1
            self.is_planning = True

    def admit(self, a, b):
        if not self.is_planning:
            self.begin(a, b)
        if not self.is_planning:
            return
        if self.waiting and a % 2:
            row = self.waiting.pop(0)
        else:
            tokens = [(a >> (i % 3)) & 1 for i in range(1 + b % 12)]
            uid = b"uid" if a & 8 else b""
            keys = self.cache.keys(np.array(tokens, np.uint32), adapter_uid=uid)
            row = Row(adapter=a & 8, tokens=tokens, keys=keys)
            self.chains.append(keys)
        peeked = self.cache.peek(row.keys)
        hit = self.cache.match(row.keys)
        assert hit.num_tokens == peeked
        assert hit.num_tokens < len(row.tokens), "one token is recomputed"
        row.position = row.end = hit.num_tokens
        row.table = hit.block_ids[0].tolist()
        row.version = self.version
        row.opened_in = self.steps[-1].step_id
        row.steps = []
        row.sequence = self.cache.open(row.keys, hit)
        assert row.sequence.num_cached_tokens == row.end
        self.num_hits += bool(row.end)
        self.rows.append(row)
        self.schedule(len(self.rows) - 1, b)

    def schedule(self, a, b):
        if not self.rows or not self.is_planning:
            return
        row, step = self.rows[a % len(self.rows)], self.steps[-1]
        if any(work.row is row for work in step.works):
            return
        num_left = len(row.tokens) - row.end
        if num_left > 0:
            kind, num = "chunk", 1 + b % num_left
        elif len(row.tokens) < MAX_TOKENS:
            kind, num = "decode", 1 + b % 3
        else:
            return
        end = row.end + num
        reservation = None
        if end > row.sequence.capacity or b % 2:
            before = self.cache.stats()
            num_short = row.sequence.num_blocks_short(end)
            reservation = row.sequence.try_schedule(end)
            if reservation is None:
                assert num_short > before.num_free + before.num_evictable
                assert self.cache.stats() == before, "no room changes nothing"
                return
            new = reservation.new_block_ids[0].tolist()
            assert len(new) == num_short
            self.grant(new)
            row.table += new
        work = Work(row, kind, num, reservation, b % num, bool(a & 4))
        row.end = end
        row.steps.append(step.step_id)
        step.works.append(work)

    def grant(self, blocks):
        held = {b for row in self.rows for b in row.table}
        held |= {b for _, table in self.parked for b in table}
        held |= {b for lease in self.copies for b in lease.ids.tolist()}
        assert not held & set(blocks), "a block has two owners"
        assert len(set(blocks)) == len(blocks)
        for block in blocks:
            self.memory[block] = ["scribble"] * self.size

    def complete(self, a, b):
        if not self.steps:
            return
        step = self.steps.pop(0)
        self.is_planning = self.is_planning and bool(self.steps)
        for work in step.works:
            row = work.row
            for position in range(row.position):
                found = self.memory[row.table[position // self.size]][position % self.size]
                assert found == row.content(position), "stale cache entry read"
        self.cache.complete_step(step.step_id)
        for work in step.works:
            self.execute(work, step.step_id)
        self.parked = [(until, table) for until, table in self.parked if until != step.step_id]

    def execute(self, work, step_id):
        row, start = work.row, work.row.position
        sampled = []
        if work.kind == "chunk":
            num_good = work.num_tokens
            if start + num_good == len(row.tokens):
                sampled = [start % 2]
        else:
            assert len(row.tokens) == start + 1
            num_good = 1 + work.num_accepted
            sampled = [(start + i) % 2 for i in range(num_good)]
        row.tokens += sampled
        for position in range(start, start + work.num_tokens):
            good = position < start + num_good
            block = self.memory[row.table[position // self.size]]
            block[position % self.size] = row.content(position) if good else "draft"
        row.position = start + num_good
        row.end -= work.num_tokens - num_good
        row.steps.remove(step_id)
        row.unsettled += sampled
        if row.sequence is not None and not work.is_lazy:
            ids = np.array(row.unsettled, np.uint32)
            row.sequence.apply(row.position, ids)
            row.unsettled = []

    def close(self, row):
        until = row.steps[-1] if row.steps else None
        row.sequence.close(in_flight_until=until)
        row.sequence = None
        self.rows.remove(row)
        if until is not None:
            self.parked.append((until, row.table))

    def finish(self, a, b):
        if self.rows:
            self.close(self.rows[a % len(self.rows)])

    def preempt(self, a, b):
        if not self.rows:
            return
        old = self.rows[a % len(self.rows)]
        self.close(old)
        old.keys.extend(np.array(old.unsettled, np.uint32))
        self.waiting.append(Row(adapter=old.adapter, tokens=list(old.tokens), keys=old.keys))

    def revert_row(self, a, b):
        if not self.is_planning or not self.steps[-1].works:
            return
        works = self.steps[-1].works
        work = works[a % len(works)]
        if work.row.sequence is not None:
            if work.reservation is not None:
                work.row.sequence.revert(work.reservation)
            self.forget(work)
            works.remove(work)

    def revert_step(self, a, b):
        if not self.steps:
            return
        step = self.steps[-1]
        for row in [row for row in self.rows if row.opened_in == step.step_id]:
            self.close(row)
        self.cache.revert_step(step.step_id)
        self.steps.pop()
        self.is_planning = False
        self.num_reverts += 1
        for work in step.works:
            self.forget(work)
        last = self.steps[-1].step_id if self.steps else None
        moved = [(last if until == step.step_id else until, t) for until, t in self.parked]
        self.parked = [(until, table) for until, table in moved if until is not None]

    def forget(self, work):
        row = work.row
        row.end -= work.num_tokens
        row.steps.pop()
        if work.reservation is not None and len(work.reservation.new_block_ids[0]):
            del row.table[-len(work.reservation.new_block_ids[0]) :]

    def reset(self, a, b):
        if a % 4 == 0:
            self.cache.reset()
            self.version += 1

    def copy(self, a, b):
        """The copy stream ends a load or begins one."""
        if self.copies and a % 2:
            self.copies.pop(b % len(self.copies)).close()
            return
        lease = MutableLease.try_take(self.cache._space.pools[0], 1 + b % 3)
        if lease is not None:
            self.grant(lease.ids.tolist())
            self.copies.append(lease)

    def scribble_free(self):
        pool = self.cache._space.pools[0]
        for block in pool._free[: pool.num_free].tolist():
            self.memory[block] = ["scribble"] * self.size

    def check(self):
        self.scribble_free()
        stats = self.cache.stats()
        assert stats.num_free + stats.num_evictable + stats.num_used == stats.num_blocks
        held = {b for row in self.rows for b in row.table}
        held |= {b for _, table in self.parked for b in table}
        assert stats.num_used >= len(held)
        for row in self.rows:
            assert row.sequence.block_ids[0].tolist() == row.table
        if self.num_reverts == 0:
            index = self.cache._space.pools[0]._index
            for keys in self.chains:
                present = [key in index for key in keys.slice(0, keys.num_blocks)]
                assert present == sorted(present, reverse=True), "a parent left before its child"

    def wind_down(self):
        for row in list(self.rows):
            self.close(row)
        while self.steps:
            self.complete(0, 0)
        while self.copies:
            self.copies.pop().close()
        self.cache.assert_idle()
        num_blocks = self.cache.stats().num_blocks
        self.begin(0, 0)
        self.is_planning = False
        keys = self.cache.keys(np.zeros(1, np.uint32))
        sequence = self.cache.open(keys)
        reservation = sequence.try_schedule(num_blocks * self.size)
        assert sorted(reservation.new_block_ids[0].tolist()) == list(range(num_blocks))
        self.cache.complete_step(self.steps.pop().step_id)
        sequence.close(in_flight_until=None)
        self.cache.assert_idle()


@pytest.fixture
def world():
    return World


@pytest.fixture
def new_cache():
    return make_cache


@pytest.fixture
def qwen35():
    """Attention and recurrent states of Qwen3.5-4B."""
    return (
        CacheGroup(
            name="attention",
            planes=(
                Plane(name="k", bytes_per_token=8 * 4 * 256 * 2),
                Plane(name="v", bytes_per_token=8 * 4 * 256 * 2),
            ),
        ),
        CacheGroup(
            name="delta",
            kind="state",
            planes=(
                Plane(name="recurrent", bytes_per_token=24 * 32 * 128 * 128 * 4),
                Plane(name="conv", bytes_per_token=24 * 8192 * 3 * 2),
            ),
        ),
    )


@pytest.fixture
def deepseek_v4():
    """DeepSeek-V4-Flash in bf16: 20 layers keep an entry every 4 tokens, with keys for the
    indexer; 23 layers one every 128; all 43 see the newest 128 tokens."""
    return (
        CacheGroup(
            name="c4",
            entries_per_token=Fraction(1, 4),
            planes=(
                Plane(name="latent", bytes_per_token=20 * 512 * 2),
                Plane(name="indexer", bytes_per_token=20 * 128 * 2),
            ),
        ),
        CacheGroup(
            name="c128",
            tokens_per_block=128,
            entries_per_token=Fraction(1, 128),
            planes=(Plane(name="latent", bytes_per_token=23 * 512 * 2),),
        ),
        CacheGroup(
            name="near",
            kind="window",
            window=128,
            planes=(Plane(name="latent", bytes_per_token=43 * 512 * 2),),
        ),
    )
