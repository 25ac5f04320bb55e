"""The flags of cache and scheduler, tested through clients of a real server."""

import json

import numpy as np
import pytest

from openinfer_testing.torch import TINY_CHECKPOINTS

_CHECKPOINT = TINY_CHECKPOINTS[0]


def _ask(server, ids, **fields):
    """Returns the number of cached prompt tokens."""
    body = {"model": server.model, "prompt": ids, "max_tokens": 2, "temperature": 0, **fields}
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    return answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def _prompt(seed, num_tokens):
    ids = np.random.default_rng(seed).integers(3, _CHECKPOINT.vocab_size, num_tokens)
    return ids.tolist()


def _group(server):
    (group,) = server.load()["cache_groups"]
    return group


@pytest.fixture(scope="module")
def start(start_shared_server, tmp_path_factory):
    """Starts a server with a random model whose context is 256 tokens."""
    folder = _CHECKPOINT.write(tmp_path_factory.mktemp("model") / _CHECKPOINT.name)
    config = json.loads((folder / "config.json").read_text())
    heads, dim = config["num_key_value_heads"], config["head_dim"]
    block_bytes = 2 * config["num_hidden_layers"] * heads * dim * 4 * 16

    def begin(*flags, num_blocks):
        server = start_shared_server(
            *("--model", str(folder), "--served-model-name", "served", "--dtype", "float32"),
            *("--max-model-len", "256", "--kv-cache-memory-bytes", str(num_blocks * block_bytes)),
            *flags,
        )
        server.model = "served"
        return server

    return begin


@pytest.fixture(scope="module")
def server(start):
    return start(
        *("--eviction-policy", "priority", "--scheduling-policy", "lpm", "--target-itl-ms", "500"),
        num_blocks=40,
    )


def test_eight_samples_of_a_cold_prompt_cost_one_prefill(server):
    num_tokens = 200
    before = server.load()
    body = {
        "model": server.model, "prompt": _prompt(0, num_tokens), "n": 8, "max_tokens": 2, "seed": 1,
    }  # fmt: skip
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    assert len(answer["choices"]) == 8
    load = server.load()
    num_prompt = load["num_prompt_tokens"] - before["num_prompt_tokens"]
    num_cached = load["num_cached_tokens"] - before["num_cached_tokens"]
    assert num_prompt == 8 * num_tokens
    # Each follower computes only the tokens after its last full block.
    assert num_prompt - num_cached == num_tokens + 7 * (num_tokens % 16)


def test_salts_keep_requests_apart(server):
    prompt = _prompt(2, 64)
    hits = [_ask(server, prompt, cache_salt=salt) for salt in ("a", "b", "a", "b")]
    assert hits == [0, 0, 48, 48]
    assert _ask(server, prompt) == 0


def test_what_became_of_blocks_is_counted(server):
    before = _group(server)
    prompt = _prompt(3, 64)
    assert [_ask(server, prompt), _ask(server, prompt)] == [0, 48]
    after = _group(server)
    grown = {
        name: after[name] - before[name]
        for name in ("num_queries", "num_queried_tokens", "num_hit_tokens")
    }
    assert grown == {"num_queries": 2, "num_queried_tokens": 128, "num_hit_tokens": 48}


def test_the_important_outlive_a_flood(server):
    server.post("/reset_prefix_cache", {})
    precious, common = _prompt(4, 64), _prompt(5, 64)
    for prompt, priority in ((precious, -1), (common, 0)):
        assert _ask(server, prompt, priority=priority) == 0
    before = _group(server)["num_evictions"]
    for seed in range(10, 16):
        _ask(server, _prompt(seed, 200))
    assert _group(server)["num_evictions"] > before
    assert _ask(server, common) == 0
    assert _ask(server, precious) == 48


def test_nothing_is_kept_where_the_cache_is_off(start):
    server = start("--no-enable-prefix-caching", num_blocks=40)
    prompt = _prompt(6, 64)
    assert [_ask(server, prompt), _ask(server, prompt)] == [0, 0]
    server.assert_idle()
    load = server.load()
    assert load["num_free_blocks"] == load["num_total_blocks"]
    assert load["num_evictable_blocks"] == 0
