"""A naive model of rows, executor and memory around the cache, which shows misuse of blocks.

The memory holds, for each position, the tokens that it was computed from. Steps execute when they
complete, and all reads of a step come before its writes. A block is overwritten the moment it is
taken. A copy stream, which waits for no step, overwrites free blocks and loads into blocks that it
leases. A block that is freed, shared or sealed too early is therefore read with wrong content.
"""

from fractions import Fraction

import numpy as np
import pytest

from openinfer_kv_cache import CacheGroup, KVCache, MutableLease, Plane
from openinfer_testing.programs import CacheWorld, ProgramRow, ProgramWork

MAX_TOKENS = 26


def make_cache(num_blocks=16, tokens_per_block=2, **options):
    plane = Plane(name="kv", bytes_per_token=64)
    group = CacheGroup(name="full", tokens_per_block=tokens_per_block, planes=(plane,))
    return KVCache((group,), num_blocks=num_blocks, **options)


class World(CacheWorld):
    """Runs programs: lists of (operation, a, b)."""

    def __init__(self, num_blocks=16, tokens_per_block=2, max_steps=3):
        super().__init__(make_cache(num_blocks, tokens_per_block), max_steps)
        runs = self.cache.pool._runs
        runs.min_blocks, runs.max_spare = 1, 4
        self.size = tokens_per_block
        self.memory = [[None] * tokens_per_block for _ in range(num_blocks)]
        self.copies = []
        self.chains = []
        self.num_hits = self.num_run_hits = 0
        self.operations = (
            self.begin,
            self.admit,
            self.schedule,
            self.schedule,
            self.schedule,
            self.complete,
            self.finish,
            self.preempt,
            self.reset,
            self.copy,
        )

    def run(self, program, check_every=4):
        for index, (operation, a, b) in enumerate(program):
            self.operations[operation % len(self.operations)](a, b)
            self.scribble_free()
            if index % check_every == 0:
                self.check()
        self.wind_down()

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
            row = ProgramRow(tokens, keys, a & 8)
            self.chains.append(keys)
        peeked = self.cache.peek(row.keys)
        near = self.size * (a % (peeked // self.size + 3))
        assert self.cache.peek(row.keys, near=near) == peeked
        hit = self.cache.match(row.keys)
        assert hit.num_tokens == peeked
        assert hit.num_tokens < len(row.tokens), "one token is recomputed"
        row.tables = [ids.tolist() for ids in hit.block_ids]
        self.opened(row, self.cache.open(row.keys, hit))
        assert row.end == peeked
        self.num_hits += bool(row.end)
        self.schedule(len(self.rows) - 1, b)

    def schedule(self, a, b):
        row = self.unplanned_row(a)
        if row is None:
            return
        step = self.steps[-1]
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
            row.tables[0] += new
        work = ProgramWork(row, kind, num, reservation, b % num, bool(a & 4))
        row.end = end
        row.steps.append(step.step_id)
        step.works.append(work)

    def grant(self, blocks):
        held = {block for (table,) in self.held_tables() for block in table}
        held |= {b for lease in self.copies for b in lease.ids.tolist()}
        assert not held & set(blocks), "a block has two owners"
        assert len(set(blocks)) == len(blocks)
        for block in blocks:
            self.memory[block] = ["scribble"] * self.size

    def complete(self, a, b):
        if not self.steps:
            return
        step = self.pop_step()
        for work in step.works:
            row = work.row
            for position in range(row.position):
                found = self.memory[row.tables[0][position // self.size]][position % self.size]
                assert found == row.content(position), "stale cache entry read"
        self.cache.complete_step(step.step_id)
        for work in step.works:
            self.execute(work, step.step_id)
        self.unpark(step.step_id)

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
            block = self.memory[row.tables[0][position // self.size]]
            block[position % self.size] = row.content(position) if good else "draft"
        row.position = start + num_good
        row.end -= work.num_tokens - num_good
        row.steps.remove(step_id)
        row.unsettled += sampled
        if row.sequence is not None and not work.is_lazy:
            row.settle()

    def copy(self, a, b):
        """Ends a load of the copy stream, or begins one."""
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
        stats = self.cache.stats()
        assert stats.num_free + stats.num_evictable + stats.num_used == stats.num_blocks
        held = {block for (table,) in self.held_tables() for block in table}
        assert stats.num_used >= len(held)
        for row in self.rows:
            assert row.sequence.block_ids[0].tolist() == row.tables[0]
        index = self.cache.pool._index
        for keys in self.chains:
            chain = keys.slice(0, keys.num_blocks)
            present = [key in index for key in chain]
            assert present == sorted(present, reverse=True), "a parent left before its child"
            ids = self.cache.pool._runs.find(chain, sum(present)).tolist()
            known = [index[key] for key in chain[: len(ids)]]
            assert ids == known, "a run has blocks of another prefix"
            self.num_run_hits += len(ids) > 0

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
    """DeepSeek-V4-Flash in bf16: 21 layers keep an entry every 4 tokens, with keys for the indexer;
    20 layers keep one every 128 tokens; all 43 layers have a window of 128 tokens, and two have
    only that."""
    return (
        CacheGroup(
            name="c4",
            entries_per_token=Fraction(1, 4),
            planes=(
                Plane(name="latent", bytes_per_token=21 * 512 * 2),
                Plane(name="indexer", bytes_per_token=21 * 128 * 2),
            ),
        ),
        CacheGroup(
            name="c128",
            tokens_per_block=128,
            entries_per_token=Fraction(1, 128),
            planes=(Plane(name="latent", bytes_per_token=20 * 512 * 2),),
        ),
        CacheGroup(
            name="near",
            kind="window",
            window=128,
            planes=(Plane(name="latent", bytes_per_token=43 * 512 * 2),),
        ),
    )
