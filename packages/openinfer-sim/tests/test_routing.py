"""Routers: which replica gets a prompt."""

import numpy as np
import pytest

from openinfer_contract import pack_ids
from openinfer_sim import ROUTERS, PrefixAwareRouter, SimError, make_router, parse_trace, simulate


def _prompt(*pieces):
    """1,024 tokens per piece."""
    return b"".join(pack_ids([piece]) * 1024 for piece in pieces)


def test_least_loaded_spreads_and_takes_the_one_that_is_done():
    router = make_router("least-loaded", 3)
    routes = [router.route(_prompt(1)) for _ in range(3)]
    assert sorted(route.replica for route in routes) == [0, 1, 2]
    router.on_first_token(routes[1])
    router.on_end(routes[1])
    assert router.route(_prompt(1)).replica == routes[1].replica


def test_random_is_even_and_seeded():
    def draw(seed):
        router = make_router("random", 4, seed=seed)
        return [router.route(b"").replica for _ in range(4000)]

    assert draw(1) == draw(1) != draw(2)
    assert np.bincount(draw(1)) == pytest.approx(1000, rel=0.15)


def test_prefix_aware_returns_to_the_holder():
    router = PrefixAwareRouter(4)
    first = router.route(_prompt(1, 2))
    router.on_first_token(first)
    router.on_end(first)
    others = [router.route(_prompt(9 + i)) for i in range(3)]
    assert first.replica not in {route.replica for route in others}
    again = router.route(_prompt(1, 2, 3))
    assert again.replica == first.replica
    assert again.num_tokens == 1024


def test_prefix_aware_leaves_a_holder_that_is_busier_than_recomputing():
    router = PrefixAwareRouter(2)
    first = router.route(_prompt(1))
    router.on_first_token(first)
    router.on_end(first)
    other = router.route(_prompt(2))
    router.on_first_token(other)
    router.on_end(other)
    stays = router.route(_prompt(1, 10))
    assert stays.replica == first.replica
    assert router.route(_prompt(1, 20)).replica == first.replica, (
        "2 pieces left against 2, it holds"
    )
    assert router.route(_prompt(1, 30)).replica == other.replica


def test_a_shared_system_prompt_attracts_no_conversation():
    """20 conversations with one system prompt are sent one after the other to 10 replicas."""
    router = PrefixAwareRouter(10)
    replicas = []
    for i in range(20):
        route = router.route(_prompt(1, 2, *range(100 * i + 100, 100 * i + 105)))
        router.on_first_token(route)
        router.on_end(route)
        replicas.append(route.replica)
    assert np.bincount(replicas).tolist() == [2] * 10


def test_prefix_aware_forgets_the_oldest():
    def left(max_keys):
        router = PrefixAwareRouter(8, max_keys=max_keys)
        for piece in (1, 2, 3):
            router.route(_prompt(piece))
        return router.route(_prompt(1, 4)).num_tokens

    assert left(max_keys=3) == 1024
    assert left(max_keys=2) == 2048


@pytest.mark.parametrize("name", ROUTERS)
def test_what_is_added_is_taken_away(name):
    router = make_router(name, 3, seed=0)
    routes = [router.route(_prompt(i % 5)) for i in range(50)]
    for route in routes:
        router.on_first_token(route)
        router.on_end(route)
    if name != "random":
        loads = router._loads
        assert not loads._num_requests.any()
        assert not loads._num_prefill_tokens.any()


def test_an_unknown_router_is_named():
    with pytest.raises(SimError, match=r"nearest.*prefix-aware"):
        make_router("nearest", 2)


@pytest.mark.long
def test_on_agents_prefix_aware_hits_most_and_random_least():
    trace = parse_trace("agents:sessions=16,turns=6,ramp=20,context=8000,system=4000,output=60")
    hits = {name: simulate(trace, num_replicas=8, router=name).report.hit_rate for name in ROUTERS}
    assert hits["prefix-aware"] > 0.8
    assert hits["prefix-aware"] > hits["least-loaded"] + 0.1
    assert hits["prefix-aware"] > hits["random"] + 0.3
