import numpy as np
import pytest

from openinfer_kv_cache import BlockKeys, LeaseUsed, NotIdle, StepOrderError


def ids(*tokens):
    return np.array(tokens, np.uint32)


def run(cache, step_id, prompt, *, end=None, **options):
    """Runs one request whose prompt is computed in one step; returns its cached tokens."""
    cache.begin_step(step_id)
    keys = cache.keys(prompt, **options)
    sequence = cache.open(keys, cache.match(keys))
    assert sequence.try_schedule(end or len(prompt)) is not None
    cache.complete_step(step_id)
    sequence.apply(len(prompt), ids(9))
    sequence.close(in_flight_until=None)
    return sequence.num_cached_tokens


def test_a_second_request_hits_full_blocks_and_recomputes_a_token(new_cache):
    cache = new_cache()
    assert run(cache, 1, ids(1, 2, 3, 4, 5)) == 0
    assert run(cache, 2, ids(1, 2, 3, 4, 5)) == 4
    assert run(cache, 3, ids(1, 2, 3, 4)) == 2
    assert run(cache, 4, ids(1, 2, 3, 9)) == 2
    assert run(cache, 5, ids(7, 2, 3, 4)) == 0
    stats = cache.stats()
    assert (stats.num_queried_tokens, stats.num_hit_tokens) == (22, 8)
    cache.assert_idle()


def test_namespaces_share_no_blocks(new_cache):
    cache = new_cache()
    prompt = ids(1, 2, 3, 4, 5)
    for step_id, options in enumerate([{}, {"salt": b"a"}, {"adapter_uid": b"a"}]):
        assert run(cache, 2 * step_id, prompt, **options) == 0
        assert run(cache, 2 * step_id + 1, prompt, **options) == 4


def test_max_tokens_limits_a_hit(new_cache):
    cache = new_cache()
    run(cache, 1, ids(1, 2, 3, 4, 5, 6))
    for limit, expected in [(0, 0), (3, 2), (4, 4), (99, 4)]:
        assert cache.peek(cache.keys(ids(1, 2, 3, 4, 5, 6)), max_tokens=limit) == expected
        hit = cache.match(cache.keys(ids(1, 2, 3, 4, 5, 6)), max_tokens=limit)
        assert hit.num_tokens == expected
        hit.close()
    cache.assert_idle()


def test_cache_off_and_uncacheable_sequences_leave_nothing(new_cache):
    off = new_cache(has_prefix_cache=False)
    assert [run(off, step_id, ids(1, 2, 3, 4, 5)) for step_id in (1, 2)] == [0, 0]
    assert off.stats().num_free == off.stats().num_blocks
    cache = new_cache()
    cache.begin_step(1)
    private = cache.open(cache.keys(ids(1, 2, 3, 4)), is_cacheable=False)
    assert private.try_schedule(4) is not None
    private.close(in_flight_until=1)
    cache.complete_step(1)
    assert cache.stats().num_free == cache.stats().num_blocks


def test_generated_tokens_are_cached_too(new_cache):
    cache = new_cache()
    cache.begin_step(1)
    sequence = cache.open(cache.keys(ids(1)))
    assert sequence.try_schedule(4) is not None
    cache.complete_step(1)
    sequence.apply(4, ids(2, 3, 4, 5))
    hit = cache.match(cache.keys(ids(1, 2, 3, 4, 5)))
    assert hit.num_tokens == 4
    hit.close()
    sequence.close(in_flight_until=None)
    cache.assert_idle()


def test_later_steps_share_sealed_blocks_and_the_same_step_does_not(new_cache):
    cache = new_cache()
    prompt = ids(1, 2, 3, 4, 5)
    cache.begin_step(1)
    leader = cache.open(cache.keys(prompt))
    assert leader.try_schedule(5) is not None
    early = cache.match(cache.keys(prompt))
    assert early.num_tokens == 0
    early.close()
    cache.begin_step(2)
    late = cache.match(cache.keys(prompt))
    assert late.block_ids[0].tolist() == leader.block_ids[0][:2].tolist()
    late.close()
    leader.close(in_flight_until=1)
    cache.complete_step(1)
    cache.complete_step(2)
    cache.assert_idle()


def test_blocks_are_released_when_the_step_has_completed(new_cache):
    cache = new_cache(num_blocks=4)
    cache.begin_step(1)
    sequence = cache.open(cache.keys(ids(1, 2, 3)))
    assert sequence.try_schedule(3) is not None
    cache.begin_step(2)
    sequence.close(in_flight_until=1)
    assert (cache.num_available_blocks, cache.stats().num_parked) == (2, 1)
    cache.complete_step(1)
    assert (cache.num_available_blocks, cache.stats().num_parked) == (4, 0)
    late = cache.open(cache.keys(ids(1)))
    late.close(in_flight_until=1)
    cache.complete_step(2)
    cache.assert_idle()


def test_rejected_drafts_leave_spare_capacity(new_cache):
    cache = new_cache()
    cache.begin_step(1)
    sequence = cache.open(cache.keys(ids(1, 2, 3)))
    assert len(sequence.try_schedule(8).new_block_ids[0]) == 4
    cache.complete_step(1)
    sequence.apply(3, ids(4))
    cache.begin_step(2)
    assert sequence.num_blocks_short(9) == 1
    assert len(sequence.try_schedule(8).new_block_ids[0]) == 0
    assert (sequence.capacity, sequence.num_computed) == (8, 3)
    cache.complete_step(2)
    sequence.close(in_flight_until=None)
    cache.assert_idle()


def test_no_room_changes_nothing(new_cache):
    cache = new_cache(num_blocks=2)
    cache.begin_step(1)
    sequence = cache.open(cache.keys(ids(1, 2)))
    assert sequence.try_schedule(5) is None
    assert cache.num_available_blocks == 2
    assert sequence.try_schedule(4) is not None


def test_a_refused_call_changes_nothing(new_cache):
    cache = new_cache()
    keys = cache.keys(ids(1, 2, 3))
    sequence = cache.open(keys)
    cache.begin_step(1)
    for end in (2.0, float("nan")):
        with pytest.raises(TypeError):
            sequence.try_schedule(end)
    before = cache.stats()
    assert (before.num_free, before.num_used) == (cache.num_blocks, 0)
    assert sequence.try_schedule(3) is not None
    cache.complete_step(1)
    with pytest.raises(ValueError, match=r"num_computed=99 .* 5 tokens are known"):
        sequence.apply(99, ids(7, 8))
    with pytest.raises(ValueError, match="room for"):
        sequence.apply(99, ids(7, 8).tobytes())
    assert keys.num_tokens == 3
    sequence.apply(3, ids(7))
    assert keys.num_tokens == 4
    sequence.close(in_flight_until=None)
    cache.assert_idle()


def test_keys_of_blocks_of_another_size_are_refused(new_cache):
    cache = new_cache()
    keys = BlockKeys(cache.groups[0].tokens_per_block + 1)
    for take in (cache.match, cache.open):
        with pytest.raises(ValueError, match="tokens per block"):
            take(keys)
    cache.assert_idle()


def test_apply_checks_its_bounds(new_cache):
    cache = new_cache()
    cache.begin_step(1)
    sequence = cache.open(cache.keys(ids(1, 2, 3)))
    sequence.try_schedule(2)
    for num_computed in (3, -1):
        with pytest.raises(ValueError, match="num_computed"):
            sequence.apply(num_computed)
    sequence.apply(2)
    with pytest.raises(ValueError, match="num_computed"):
        sequence.apply(1)


def test_steps_complete_in_order(new_cache):
    cache = new_cache()
    sequence = cache.open(cache.keys(ids(1)))
    with pytest.raises(StepOrderError):
        sequence.try_schedule(1)
    cache.begin_step(5)
    for wrong in (5, 4):
        with pytest.raises(StepOrderError):
            cache.begin_step(wrong)
    cache.begin_step(7)
    with pytest.raises(StepOrderError):
        cache.complete_step(7)
    with pytest.raises(StepOrderError):
        cache.cancel_step(5)
    cache.complete_step(5)
    cache.complete_step(7)
    with pytest.raises(StepOrderError):
        cache.begin_step(7)


def test_closing_too_early_and_twice(new_cache):
    cache = new_cache()
    cache.begin_step(1)
    sequence = cache.open(cache.keys(ids(1)))
    sequence.try_schedule(1)
    for until in (None, 0):
        with pytest.raises(ValueError, match="in flight"):
            sequence.close(in_flight_until=until)
    sequence.close(in_flight_until=1)
    for use in (
        lambda: sequence.close(in_flight_until=1),
        lambda: sequence.apply(1),
        lambda: sequence.try_schedule(2),
        lambda: sequence.block_ids,
    ):
        with pytest.raises(LeaseUsed):
            use()


def test_a_hit_is_used_once(new_cache):
    cache = new_cache()
    keys = cache.keys(ids(1, 2, 3))
    hit = cache.match(keys)
    cache.open(keys, hit).close(in_flight_until=None)
    for use in (hit.close, lambda: cache.open(keys, hit), lambda: hit.num_tokens):
        with pytest.raises(LeaseUsed):
            use()


def test_after_a_reset_no_earlier_block_is_shared(new_cache):
    cache = new_cache()
    run(cache, 1, ids(1, 2, 3))
    cache.begin_step(2)
    runner = cache.open(cache.keys(ids(5, 6, 7, 8, 9)))
    assert runner.try_schedule(2) is not None
    hit = cache.match(cache.keys(ids(1, 2, 3)))
    cache.reset()
    with pytest.raises(ValueError, match="reset"):
        cache.open(cache.keys(ids(1, 2, 3)), hit)
    hit.close()
    cache.begin_step(3)
    assert runner.try_schedule(5) is not None
    cache.begin_step(4)
    for prompt in (ids(1, 2, 3), ids(5, 6, 7, 8, 9)):
        miss = cache.match(cache.keys(prompt))
        assert miss.num_tokens == 0
        miss.close()
    for step_id in (2, 3, 4):
        cache.complete_step(step_id)
    runner.apply(5)
    runner.close(in_flight_until=None)
    assert cache.stats().num_free == cache.stats().num_blocks


@pytest.mark.parametrize("leftover", ["step", "hit", "sequence"])
def test_assert_idle_reports_leftovers(new_cache, leftover):
    cache = new_cache()
    cache.assert_idle()
    keys = cache.keys(ids(1))
    if leftover == "step":
        cache.begin_step(1)
    elif leftover == "hit":
        cache.match(keys)
    else:
        cache.open(keys)
    with pytest.raises(NotIdle):
        cache.assert_idle()


def test_a_step_without_reservations_can_be_cancelled(new_cache):
    cache = new_cache()
    cache.begin_step(1)
    sequence = cache.open(cache.keys(ids(1, 2, 3)))
    assert sequence.try_schedule(3) is not None
    with pytest.raises(StepOrderError):
        cache.cancel_step(1)
    cache.begin_step(2)
    cache.cancel_step(2)
    with pytest.raises(StepOrderError):
        sequence.try_schedule(4)
    cache.begin_step(2)
    assert cache.peek(cache.keys(ids(1, 2, 3))) == 2, "shared once a later step has begun"
    sequence.close(in_flight_until=1)
    cache.complete_step(1)
    cache.complete_step(2)
    cache.assert_idle()
