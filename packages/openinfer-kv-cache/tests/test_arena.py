"""Slabs that move between groups, and caches with the sizes of real models under load."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openinfer_kv_cache import (
    CacheGroup,
    CacheUse,
    EvictionRank,
    KVCache,
    Plane,
    Resume,
    plan_slabs,
)
from openinfer_kv_cache.arena._arena import Arena
from openinfer_kv_cache.groups._resume_points import ResumePoints

TOKEN = np.array([7], np.uint32)


def tokens(*seeds, size=100):
    return np.concatenate(
        [np.random.default_rng(seed).integers(0, 1000, size, dtype=np.uint32) for seed in seeds]
    )


class Server:
    """Runs one request at a time as a scheduler would; records copies and the most blocks held."""

    def __init__(self, cache, chunk=512):
        self.cache, self.chunk = cache, chunk
        self.step = 0
        self.copies = []
        self.most_held = [0] * len(cache.groups)

    def run(self, prompt, num_output=1, boundaries=()):
        cache = self.cache
        keys = cache.keys(prompt, boundaries=np.array(boundaries, np.uint32))
        hit = cache.match(keys)
        num_cached = position = hit.num_tokens
        sequence = cache.open(keys, hit)
        while position < len(prompt):
            end = cache.chunk_end(keys, position, min(position + self.chunk, len(prompt)))
            if not self.forward(sequence, end):
                sequence.close(in_flight_until=None)
                return None
            position = end
        output = 0
        sequence.apply(position, TOKEN)
        while output < num_output - 1 and self.forward(sequence, position + 1, is_decode=True):
            position, output = position + 1, output + 1
            sequence.apply(position, TOKEN)
        sequence.close(in_flight_until=None)
        return num_cached

    def forward(self, sequence, end, is_decode=False):
        self.step += 1
        self.cache.begin_step(self.step)
        if end > sequence.capacity or not is_decode:
            reservation = sequence.try_schedule(end, reach=end)
            if reservation is None:
                self.cache.cancel_step(self.step)
                return False
            self.copies += [*reservation.copies.before, *reservation.copies.after]
        held = [len(ids) for ids in sequence.block_ids]
        self.most_held = [max(pair) for pair in zip(held, self.most_held, strict=True)]
        self.cache.complete_step(self.step)
        return True


def slabs_of(cache):
    return [int(pool._is_owned.sum()) for pool in cache._space.pools]


# the arena without a cache


@pytest.mark.long
@settings(max_examples=600, deadline=None, derandomize=True)
@given(
    per_slab=st.lists(st.integers(1, 3), min_size=2, max_size=3),
    num_slabs=st.integers(1, 5),
    data=st.data(),
)
def test_try_provide_succeeds_exactly_when_there_is_room(per_slab, num_slabs, data):
    arena = Arena(num_slabs, per_slab, [False] * len(per_slab))
    held = []
    for group, pool in enumerate(arena.pools):
        taken = pool.try_take(data.draw(st.integers(0, num_slabs * per_slab[group])))
        held.append([] if taken is None else taken.tolist())
    for group, pool in enumerate(arena.pools):
        for block in list(held[group]):
            if data.draw(st.booleans()):
                pool.release(np.array([block], np.int32))
                held[group].remove(block)
    needs = [data.draw(st.integers(0, 4)) for _ in per_slab]
    idle, local, own = [], [], []
    for group, pool in enumerate(arena.pools):
        own.append(np.flatnonzero(pool._is_owned).tolist())
        used = {block // per_slab[group] for block in held[group]}
        idle.append(len(set(own[group]) - used))
        local.append(len(own[group]) * per_slab[group] - len(held[group]))
    num_free = num_slabs - sum(map(len, own))
    possible = any(
        sum(given) + num_free
        >= sum(
            max(0, -(-(need - have + away * size) // size))
            for need, have, away, size in zip(needs, local, given, per_slab, strict=True)
        )
        for given in product(*(range(num + 1) for num in idle))
    )
    before = [(pool.num_free, pool.num_evictable) for pool in arena.pools]
    assert arena.try_provide(needs) == possible
    if possible:
        assert all(p.num_available >= n for p, n in zip(arena.pools, needs, strict=True))
    else:
        assert before == [(pool.num_free, pool.num_evictable) for pool in arena.pools]
    for group, pool in enumerate(arena.pools):
        assert all(pool._refcounts[block] == 1 for block in held[group])


def test_the_slab_released_longest_ago_is_taken_first():
    arena = Arena(3, (2, 1), (False, False))
    wide, narrow = arena.pools
    old, new = narrow.try_take(1), narrow.try_take(1)
    narrow.register(old, [b"old"], 0)
    narrow.register(new, [b"new"], 0)
    blocks = wide.try_take(2)
    wide.register(blocks, [b"a", b"b"], 0)
    for pool, ids in ((narrow, old), (wide, blocks), (narrow, new)):
        pool.release(ids)
    assert wide.try_take(1) is not None
    assert [narrow.has(b"old"), wide.has(b"a"), wide.has(b"b"), narrow.has(b"new")] == [
        False,
        True,
        True,
        True,
    ]
    assert (wide.num_blocks, narrow.num_blocks, arena.num_moves) == (4, 1, 1)
    assert wide.try_take(2) is not None, "its own blocks are older than the state"
    assert narrow.has(b"new")


class MostUsed:
    """An eviction policy that keeps the blocks with the lowest priority value."""

    clock = staticmethod(lambda: 0.0)

    def attach(self, num_blocks, /):
        self.scores = [0.0] * num_blocks

    def stored(self, block_ids, /):
        pass

    def used(self, block_ids, use, /):
        for block in block_ids.tolist():
            self.scores[block] = -float(use.priority)

    def rank(self, block_id, /):
        return EvictionRank((self.scores[block_id],))


@pytest.mark.parametrize("num_free", [0, 3])
def test_many_slabs_move_in_the_order_of_a_policy(num_free):
    arena = Arena(12 + num_free, (1, 2, 2), (False, False, False))
    taker, *others = arena.pools
    for pool in others:
        pool.order_by(MostUsed(), is_chained=False)
    order = np.random.default_rng(0).permutation(12).tolist()
    for slab in range(12):
        pool = others[slab % 2]
        ids = pool.try_take(2)
        pool.register(ids, [b"%d" % slab, b"%d'" % slab], 0)
        pool.note_use(ids, CacheUse(priority=12 - order.index(slab)))
        pool.release(ids)
    assert taker.try_take(7 + num_free) is not None
    left = [slab for slab in order if others[slab % 2].has(b"%d" % slab)]
    assert left == order[7:]
    assert arena.num_moves == 7


def test_many_slabs_move_in_the_order_of_their_release():
    arena = Arena(12, (1, 2, 2), (False, False, False))
    taker, *others = arena.pools
    order = np.random.default_rng(0).permutation(12).tolist()
    owned = [others[slab % 2].try_take(2) for slab in range(12)]
    for slab in order:
        pool = others[slab % 2]
        pool.register(owned[slab], [b"%d" % slab, b"%d'" % slab], 0)
        pool.release(owned[slab])
    assert taker.try_take(7) is not None
    left = [slab for slab in order if others[slab % 2].has(b"%d" % slab)]
    assert left == order[7:]
    assert arena.num_moves == 7


# caches with the sizes of real models


def test_memory_moves_between_attention_and_states(qwen35):
    cache = KVCache(qwen35, num_slabs=12)
    server = Server(cache, chunk=2048)
    assert server.run(tokens(1, size=14_000)) == 0
    many_attention = slabs_of(cache)
    assert many_attention[0] >= 9
    for seed in range(20):
        assert server.run(tokens(2, seed + 100, size=40)) is not None
    many_states = slabs_of(cache)
    assert many_states[1] > many_attention[1] + 4, "short requests need states, not attention"
    assert server.run(tokens(3, size=14_000)) == 0
    assert slabs_of(cache)[0] >= 9, "and back"
    assert sum(slabs_of(cache)) == 12
    cache.assert_idle()


def test_a_conversation_resumes_at_the_newest_checkpoint(qwen35):
    cache = KVCache(qwen35, num_slabs=40)
    server = Server(cache)
    first = tokens(1, 2)
    assert server.run(first, num_output=150) == 0
    assert [(copy.position, copy.source != copy.target) for copy in server.copies] == [
        (192, True),  # the prompt's last boundary
        (256, True),  # copies of growing output
        (320, True),
    ]
    output = np.repeat(TOKEN, 150)
    assert server.run(first) == 192
    second = np.concatenate((first, output, tokens(3)))
    server.copies.clear()
    assert server.run(second) == 320
    assert [copy.position for copy in server.copies] == [320, 448], "restored, then left"
    assert server.run(np.concatenate((first, output[:100], tokens(4)))) == 192, (
        "of the output's checkpoints only the newest stays"
    )
    cache.assert_idle()


def test_hints_make_shared_system_prompts_hit(qwen35):
    cache = KVCache(qwen35, num_slabs=40)
    server = Server(cache)
    assert server.run(tokens(1, 2), boundaries=[100]) == 0
    assert server.run(tokens(1, 3), boundaries=[100]) == 96
    assert server.run(tokens(4, 2)) == 0
    assert server.run(tokens(4, 3)) == 0, "without a hint nothing is shared before the end"


def test_resume_points_lie_at_every_tokens(qwen35):
    attention, state = qwen35
    state = type(state)(
        name=state.name,
        kind="state",
        planes=state.planes,
        resume=Resume(every_tokens=64, output_tokens=None),
    )
    server = Server(KVCache((attention, state), num_slabs=40))
    assert server.run(tokens(1, 2), num_output=100) == 0
    assert [copy.position for copy in server.copies] == [64, 128, 192, 256]
    assert server.run(tokens(1, 3)) == 64


def test_after_a_reset_no_state_is_copied_that_could_not_be_hit(qwen35):
    attention, state = qwen35
    state = replace(state, resume=Resume(every_tokens=64))
    cache = KVCache((attention, state), num_slabs=40)
    keys = cache.keys(tokens(1, size=300))
    sequence = cache.open(keys, cache.match(keys))
    num_copies = []
    for step_id, end in enumerate((64, 128, 192), 1):
        if step_id == 3:
            cache.reset()
        cache.begin_step(step_id)
        num_copies.append(len(sequence.try_schedule(end, reach=end).copies.after))
        cache.complete_step(step_id)
    assert num_copies == [1, 1, 0]
    sequence.close(in_flight_until=None)
    cache.assert_idle()


def test_a_window_keeps_little_of_a_long_prompt(deepseek_v4):
    layout = plan_slabs(deepseek_v4)
    cache = KVCache(deepseek_v4, num_slabs=180, max_unsettled_tokens=2048)
    server = Server(cache, chunk=1024)
    prompt = tokens(1, size=20_000)
    assert cache.num_blocks_for(20_000) <= sum(
        (20_000 // 16 // layout.blocks_per_slab[0] + 1, 1, 140 // layout.blocks_per_slab[2] + 1)
    )
    assert server.run(prompt) == 0
    assert server.most_held[:2] == [1250, 157]
    assert server.most_held[2] <= (1024 + 128) // 16 + 1
    assert cache._space.pools[2].num_evictable == 8 + 2, "a window, and the rest"
    assert server.run(prompt) == 19_968, "a multiple of the 128 tokens of the largest block"
    assert server.run(np.concatenate((prompt, tokens(2)))) == 19_968
    assert server.run(np.concatenate((prompt[:10_000], tokens(2)))) == 0, "its window is gone"
    cache.assert_idle()


@pytest.mark.parametrize(("model", "times"), [("qwen35", 1), ("deepseek_v4", 3)])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    turns=st.lists(
        st.tuples(st.integers(0, 3), st.integers(1, 900), st.integers(1, 80)), max_size=25
    ),
    num_slabs=st.integers(6, 30),
)
def test_conversations_under_pressure_leave_nothing_held(model, times, turns, num_slabs, request):
    num_slabs *= times
    cache = KVCache(request.getfixturevalue(model), num_slabs=num_slabs)
    server = Server(cache)
    histories = [tokens(seed) for seed in range(4)]
    for who, num_new, num_output in turns:
        history = histories[who]
        cached = server.run(history, num_output, boundaries=[100, len(history) - 1])
        cache.assert_idle()
        assert sum(slabs_of(cache)) <= num_slabs
        stats = cache.stats()
        assert stats.num_free + stats.num_evictable == stats.num_blocks
        if cached is None:
            histories[who] = history[:100]
        else:
            assert cached % 16 == 0
            assert cached < len(history)
            new = tokens(who, num_new, size=num_new)
            histories[who] = np.concatenate((history, np.repeat(TOKEN, num_output), new))


def test_boundaries_of_a_request_are_sorted_once(monkeypatch):
    """Sorting once matters because a client may send many boundaries for a prompt of many
    chunks."""
    made = []
    init = ResumePoints.__init__

    def counted(self, *args):
        made.append(self)
        init(self, *args)

    monkeypatch.setattr(ResumePoints, "__init__", counted)
    state = CacheGroup(name="state", kind="state", planes=(Plane(name="s", bytes_per_token=64),))
    full = CacheGroup(name="full", planes=(Plane(name="kv", bytes_per_token=4),))
    cache = KVCache((full, state), num_slabs=200)
    keys = cache.keys(tokens(0, size=1000), boundaries=np.arange(1, 1000, dtype=np.uint32))
    ends = [cache.chunk_end(keys, start, start + 100) for start in range(0, 900, 100)]
    assert ends == [start // 16 * 16 + 16 for start in range(0, 900, 100)]
    assert len(made) == 1
    keys.extend(TOKEN)
    cache.chunk_end(keys, 0, 100)
    assert len(made) == 2, "the last resume point depends on the number of known tokens"
