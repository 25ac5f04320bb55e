import pytest

from openinfer_contract import Adapter, CacheOptions, PromptLogprobOptions
from openinfer_scheduler import FCFS


def cached(subject, request_id):
    return dict(subject.ends[request_id].cached).get("device", 0)


def run_two(loop, first, second, *, prompt=range(17), **options):
    subject = loop(max_num_batched_tokens=40, **options)
    subject.add(prompt, max_tokens=2, ignore_eos=True, **first)
    subject.run()
    subject.add(prompt, max_tokens=2, ignore_eos=True, **second)
    subject.run()
    return cached(subject, "r1")


def test_a_prefix_is_hit_and_one_token_recomputed(loop):
    assert run_two(loop, {}, {}) == 16
    assert run_two(loop, {}, {}, prompt=range(16)) == 12


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"cache": CacheOptions(salt=b"a")}, {}),
        ({}, {"cache": CacheOptions(salt=b"a")}),
        ({"cache": CacheOptions(salt=b"a")}, {"cache": CacheOptions(salt=b"b")}),
        ({}, {"adapter": Adapter("a", b"a" * 16)}),
        ({"cache": CacheOptions(write=False)}, {}),
        ({}, {"cache": CacheOptions(read=False)}),
        ({}, {"prompt_logprobs": PromptLogprobOptions()}),
    ],
)
def test_requests_with_different_options_share_no_blocks(loop, first, second):
    assert run_two(loop, first, second) == 0


@pytest.mark.parametrize(
    "both", [{"cache": CacheOptions(salt=b"a")}, {"adapter": Adapter("a", b"a" * 16)}]
)
def test_requests_with_equal_options_share_blocks(loop, both):
    assert run_two(loop, both, both) == 16


def test_a_request_that_does_not_read_still_writes(loop):
    assert run_two(loop, {"cache": CacheOptions(read=False)}, {}) == 16


def test_prompt_logprobs_read_the_cache_before_their_start(loop):
    owed = {"prompt_logprobs": PromptLogprobOptions(start=9)}
    assert run_two(loop, {}, owed) == 8


def test_followers_wait_for_the_leader_of_their_prefix(loop):
    subject = loop(max_num_seqs=8, max_num_batched_tokens=100)
    for number in range(8):
        subject.add([*range(17), number], max_tokens=3, ignore_eos=True)
    plan = subject.plan()
    assert len(plan.rows) == 1
    plan = subject.plan()
    assert [row.num_tokens for row in plan.rows] == [1] + [2] * 7
    subject.run()
    assert [cached(subject, f"r{n}") for n in range(8)] == [0] + [16] * 7


def test_a_follower_is_passed_by_others(loop):
    subject = loop(max_num_batched_tokens=100)
    subject.add(range(17))
    subject.add(range(17))
    subject.add([30] * 6)
    plan = subject.plan()
    assert [start.request.request_id for start in plan.starts] == ["r0", "r2"]
    subject.run()


def test_followers_do_not_wait_for_a_leader_whose_blocks_are_forgotten(loop):
    subject = loop(max_num_batched_tokens=100)
    subject.add(range(17), max_tokens=40, ignore_eos=True)
    subject.step()
    subject.scheduler.reset_prefix_cache()
    subject.add(range(17), max_tokens=2, ignore_eos=True)
    for _ in range(4):
        subject.step()
    assert "r1" in subject.ends
    subject.run()


def test_optimistic_admission_leaves_the_watermark(loop):
    subject = loop(num_blocks=10, watermark=0.4, max_num_batched_tokens=40)
    subject.add([1] * 12, max_tokens=4)
    subject.add([2] * 16, max_tokens=4)
    assert len(subject.plan().starts) == 1, "3 of 10 blocks used, 4 more would leave 3"
    subject.run()


def test_the_first_request_may_go_below_the_watermark(loop):
    subject = loop(num_blocks=10, watermark=0.9, max_num_batched_tokens=40)
    subject.add([1] * 36, max_tokens=4)
    assert subject.plan() is not None
    subject.run()


def test_lifetime_admission_never_preempts(loop):
    def preemptions(admission):
        subject = loop(num_blocks=9, max_num_batched_tokens=40, admission=admission)
        for number in range(6):
            subject.add([10 + number] * 7, max_tokens=17, ignore_eos=True)
        subject.run()
        return subject.scheduler.load().num_preemptions

    assert preemptions("optimistic") > 0
    assert preemptions("lifetime") == 0


def test_a_sequence_without_room_makes_no_cache_query(loop):
    subject = loop(num_blocks=8, max_num_batched_tokens=40, max_model_len=32)
    subject.add(range(20), max_tokens=10, ignore_eos=True)
    subject.add(range(100, 130), max_tokens=2, ignore_eos=True)
    for _ in range(6):
        subject.step()
    assert subject.scheduler.load().num_waiting == 1
    assert subject.cache.stats().num_queried_tokens == 20
    subject.run()


class Asked(FCFS):
    """Notes the length of the queue at each call of `order`."""

    def __init__(self):
        self.num_waiting = []

    def order(self, sequences, now, /):
        if sequences and not sequences[0].is_running:
            self.num_waiting.append(len(sequences))
        return sequences


def test_a_queue_without_room_is_left_alone_until_something_changes(loop):
    policy = Asked()
    subject = loop(
        policy=policy, num_blocks=11, max_num_batched_tokens=40, max_model_len=44, depth=1
    )
    subject.add([1] * 12, max_tokens=30, ignore_eos=True)
    subject.step()
    subject.add([2] * 30, max_tokens=2, ignore_eos=True)
    for _ in range(19):
        subject.step()
    assert policy.num_waiting == [1, 1, 1], "at first, after a change, and again 16 plans later"
    subject.add([3] * 31, max_tokens=2, ignore_eos=True)
    subject.step()
    assert policy.num_waiting[3:] == [2]
    subject.abort("r2")
    subject.step()
    assert policy.num_waiting[4:] == [1]
    subject.abort("r0")
    plan = subject.plan()
    assert [start.request.request_id for start in plan.starts] == ["r1"]
    subject.run()
