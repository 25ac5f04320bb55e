"""The eviction policy as an engine option: the hints of requests reach the cache."""

from collections.abc import Callable
from typing import Any

import pytest

from openinfer_contract import CacheOptions, Rejected
from openinfer_engine import EngineLoop, EngineOptions, assemble
from openinfer_testing import CountingShape, ZeroCostExecutor
from openinfer_testing.engine import Recorder

Request = Callable[..., Any]
PROMPT = list(range(1, 66))


def generate(loop: EngineLoop, request: Any) -> Recorder:
    recorder = Recorder(request.request_id)
    loop.submit(request, recorder)
    while loop.has_work:
        loop.step()
    return recorder


def num_hit_after_others(loop: EngineLoop, make_request: Request, **first: Any) -> int:
    """Returns how many prompt tokens are still cached after 30 requests with other tokens."""
    generate(loop, make_request(PROMPT, request_id="first", max_tokens=1, **first))
    for i in range(30):
        generate(loop, make_request([500 + i] * 48, request_id=f"other {i}", max_tokens=1))
    before = loop.load().num_cached_tokens
    generate(loop, make_request(PROMPT, request_id="again", max_tokens=1))
    return loop.load().num_cached_tokens - before


def make_loop(policy: Any) -> EngineLoop:
    shape = CountingShape(num_blocks=24)
    return assemble(ZeroCostExecutor(shape), EngineOptions(eviction_policy=policy))


@pytest.mark.parametrize("policy", ["lru", "lfu", "priority"])
def test_every_policy_serves(policy: str, make_request: Request) -> None:
    loop = make_loop(policy)
    assert num_hit_after_others(loop, make_request) == 0
    assert loop.load().is_idle
    loop.close()


@pytest.mark.parametrize(
    "first",
    [{"cache": CacheOptions(hint="pin")}, {"session_id": "a"}, {"priority": -1}],
    ids=["pin", "session", "priority"],
)
def test_what_matters_stays_by_priority(first: dict[str, Any], make_request: Request) -> None:
    loop = make_loop("priority")
    assert num_hit_after_others(loop, make_request, **first) == 64
    loop.close()


def test_what_is_used_often_stays_by_frequency(make_request: Request) -> None:
    loop = make_loop("lfu")
    for i in range(3):
        generate(loop, make_request(PROMPT, request_id=f"before {i}", max_tokens=1))
    assert num_hit_after_others(loop, make_request) == 64
    loop.close()


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_hints_are_refused_where_nobody_reads_them(policy: str, make_request: Request) -> None:
    loop = make_loop(policy)
    recorder = generate(loop, make_request(cache=CacheOptions(hint="pin")))
    assert isinstance(recorder.end, Rejected)
    assert recorder.end.field == "cache.hint"
    loop.close()
