"""Decode rows that are found once and planned many times: nobody can tell from outside."""

import pytest

from openinfer_contract import pack_ids


def running(loop, num_requests, **options):
    """Sequences that all decode, with room for the next positions."""
    subject = loop(num_blocks=300, max_num_batched_tokens=64, max_num_seqs=6, **options)
    for number in range(num_requests):
        subject.add([number] * 5, max_tokens=40, ignore_eos=True)
    for _ in range(4):
        subject.step()
    return subject


def test_a_prompt_that_starts_beside_them_goes_on_with_the_next_plan(loop):
    subject = running(loop, 2, depth=1, max_chunk_tokens=4)
    subject.add([9] * 12, max_tokens=2, ignore_eos=True)
    for num_tokens in (4, 4, 4, 1):
        plan = subject.plan()
        assert {row.slot: row.num_tokens for row in plan.rows} == {0: 1, 1: 1, 2: num_tokens}
        subject.complete()
    subject.run()


class Turning:
    """Serves the youngest first whenever told to."""

    is_turned = False

    def order(self, sequences, now):
        return list(reversed(sequences)) if self.is_turned else sequences

    def chunk(self, sequence, max_tokens):
        return max_tokens

    def victim(self, candidates):
        return candidates[-1]


def test_rows_follow_the_policy(loop):
    policy = Turning()
    subject = running(loop, 3, depth=1, policy=policy)
    seen = []
    for policy.is_turned in (False, False, True, True, False):
        seen.append([row.slot for row in subject.plan().rows])
        subject.complete()
    assert seen == [[0, 1, 2], [0, 1, 2], [2, 1, 0], [2, 1, 0], [0, 1, 2]]
    subject.run()


@pytest.mark.parametrize("depth", [1, 2])
def test_plans_that_are_taken_back_leave_no_trace(loop, depth):
    """Blocks of output can be hit after the same token, and requests end at the same one."""

    def hits(num_reverted):
        subject = running(loop, 2, depth=depth, tokens_per_block=1)
        seen = []
        while subject.scheduler.has_work:
            for _ in range(num_reverted):
                subject.plan(launch=False)
            subject.step()
            tokens = [0] * 5 + subject.output["r0"]
            seen.append((len(tokens), subject.cache.peek(subject.cache.keys(pack_ids(tokens)))))
        subject.run()
        return seen

    seen = hits(0)
    assert len({num_hit for _, num_hit in seen}) > 2
    assert hits(3) == seen


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("max_tokens", [29, 30, 31, 32, 33])
def test_another_rows_stop_id_hides_nobodys_end(loop, depth, max_tokens):
    """A token that ends one request is sampled by another, whose last token comes later."""

    def run(stop_token_ids):
        subject = loop(
            num_blocks=600, max_num_batched_tokens=64, max_num_seqs=6, depth=depth,
            tokens_per_block=1, max_model_len=64,
        )  # fmt: skip
        subject.add([1] * 5, max_tokens=max_tokens, ignore_eos=True, request_id="x")
        subject.add(
            [2] * 5, max_tokens=50, min_tokens=50, ignore_eos=True, stop_token_ids=stop_token_ids
        )
        for _ in range(200):
            if subject.scheduler.has_work:
                subject.step()
        assert not subject.scheduler.has_work
        return subject.output["x"]

    expected = run(())
    assert len(expected) == max_tokens
    for token_id in sorted(set(expected)):
        assert run((token_id,)) == expected
