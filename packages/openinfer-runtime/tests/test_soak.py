"""Random requests at once: the tokens of a request do not depend on the others."""

import numpy as np
import pytest
from msgspec.structs import replace

from openinfer_contract import Finished, unpack_ids
from openinfer_engine import assemble
from openinfer_runtime import TorchExecutor

NUM_REQUESTS = 24


@pytest.fixture
def requests(ask):
    """Random requests; half of them begin with one of two shared prefixes."""
    rng = np.random.default_rng(3)
    prefixes = [rng.integers(320, size=40).tolist() for _ in range(2)]

    def make():
        made = []
        for index in range(NUM_REQUESTS):
            prompt = prefixes[index % 2][: rng.integers(1, 41)] if index % 4 < 2 else []
            prompt = prompt + rng.integers(320, size=rng.integers(1, 30)).tolist()
            sampling = {"temperature": float(rng.choice([0.0, 0.7, 1.2])), "seed": index}
            if index % 3 == 0:
                sampling |= {"top_k": 20, "top_p": 0.95}
            made.append(ask(prompt, max_tokens=int(rng.integers(1, 40)), **sampling))
        return made

    return make


@pytest.mark.long
@pytest.mark.parametrize("depth", [1, 2])
def test_arrivals_aborts_and_preemptions(engine, requests, block_bytes, depth):
    roomy = engine(enable_prefix_caching=False)
    rows = requests()
    expected = [roomy.run([request])[0].token_ids for request in rows]

    tight = engine(
        kv_cache_bytes=14 * block_bytes, max_model_len=112, max_num_batched_tokens=24,
        max_num_seqs=6,
    )  # fmt: skip
    inner = tight.executor
    executor = TorchExecutor(inner._model, inner._cache, replace(inner.info, depth=depth))
    loop = assemble(executor, tight.options)
    rng = np.random.default_rng(depth)
    streams = {request.request_id: [] for request in rows}
    waiting = list(rows)
    aborted = {rows[index].request_id for index in (4, 9, 17)}
    while waiting or loop.has_work:
        while waiting and rng.random() < 0.3:
            request = waiting.pop(0)
            loop.submit(request, streams[request.request_id].append)
        for request_id in aborted:
            if len(streams[request_id]) == 3:
                loop.abort([request_id])
        loop.step()

    assert loop.load().is_idle
    assert loop.load().num_preemptions > 0
    assert loop.load().num_cached_tokens > 0
    for request, alone in zip(rows, expected, strict=True):
        events = streams[request.request_id]
        tokens = [token for event in events for token in unpack_ids(event.token_ids)]
        assert tokens == alone[: len(tokens)]
        assert isinstance(events[-1].end, Finished)
        if request.request_id not in aborted:
            assert len(tokens) == len(alone)
