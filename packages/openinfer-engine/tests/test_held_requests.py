"""Held requests: limits and deadlines."""

from openinfer_contract import GenerateRequest, Limits, StopRules, pack_ids
from openinfer_engine.loop._held_requests import HeldRequests

LIMITS = Limits(
    max_model_len=64,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_queued_requests=100,
    max_queued_tokens=1000,
    max_logprobs=0,
)


def request(name, deadline):
    return GenerateRequest(
        request_id=name,
        prompt_token_ids=pack_ids([1]),
        stop=StopRules(max_tokens=1),
        deadline=deadline,
    )


def test_each_is_late_from_its_own_deadline_on_however_they_come():
    held = HeldRequests(LIMITS)
    for name, deadline in (("a", 5.0), ("b", 3.0), ("patient", None)):
        assert held.add(request(name, deadline), 0.0) is None
    assert held.expired(2.9) == []
    assert held.expired(3.0) == ["b"]
    assert held.pop("b") is not None
    assert held.expired(3.1) == []
    held.add(request("c", 4.0), 3.2)
    assert held.expired(3.9) == []
    assert held.expired(4.0) == ["c"]
    assert held.expired(6.0) == ["a", "c"]
    assert held.pop("a") is not None
    assert held.pop("c") is not None
    assert held.expired(1e9) == []


def test_who_is_not_late_is_not_looked_at():
    held = HeldRequests(LIMITS)
    for number in range(50):
        held.add(request(f"r{number}", 10.0 + number), 0.0)
    held._held = None
    assert held.expired(9.0) == []
