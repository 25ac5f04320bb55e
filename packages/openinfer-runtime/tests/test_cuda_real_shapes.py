"""Qwen3-0.6B's and 4B's shapes on one GPU, held to transformers on the same GPU.

pytest -m gpu packages/openinfer-runtime/tests/test_cuda_real_shapes.py
"""

import math

import numpy as np
import pytest
import torch

from openinfer_contract import LogprobOptions, PromptLogprobOptions, unpack_floats, unpack_ids
from openinfer_testing.torch import TinyCheckpoint, release_references, run_gate

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
NUM_TOP = 20
VOCAB_SIZE = 151_936


def _checkpoint(name, hidden, intermediate, num_layers, num_heads):
    return TinyCheckpoint(
        name=name, num_heads=num_heads, num_kv_heads=8, head_dim=128, hidden_size=hidden,
        intermediate_size=intermediate, num_layers=num_layers, vocab_size=VOCAB_SIZE,
        max_position=40_960, rope_theta=1e6, dtype="bfloat16", max_shard_bytes=2 << 30,
        # Logits spread by about two and a half, as sharp as a trained model's.
        init_std=2.5 / math.sqrt(hidden),
    )  # fmt: skip


SHAPES = {
    "0.6B": _checkpoint("0.6B", 1024, 3072, 28, 16),
    "4B": _checkpoint("4B", 2560, 9728, 36, 32),
}
# How steps are made: engine options, how often all is asked, and whether one by one.
WAYS = {
    "eager": ({"enforce_eager": True}, 1, False),
    "graphs": ({}, 1, False),
    "alone": ({}, 1, True),
    "chunked": ({"max_num_batched_tokens": 96}, 1, False),
    "prefix-hit": ({}, 2, False),
    "cascade": ({}, 2, False),
}


@pytest.fixture(scope="module", params=SHAPES)
def folder(request, tmp_path_factory):
    yield SHAPES[request.param].write(tmp_path_factory.mktemp("real") / request.param, "cuda")
    release_references()


@pytest.fixture
def runner(folder, engine_class):
    """An engine with room for little, so that several and the reference fit on the device."""
    started = []

    def start(**options):
        options = {"device": "cuda", "kv_cache_bytes": 1 << 30, "max_model_len": 2048} | options
        started.append(engine_class(folder, **options))
        return started[-1]

    yield start
    for engine in started:
        engine.executor.close()


@pytest.fixture(scope="module")
def prompts():
    generator = torch.Generator().manual_seed(11)
    lengths = (300, 3, 47, 129, 2, 16, 600)
    return [torch.randint(VOCAB_SIZE, (n,), generator=generator).tolist() for n in lengths]


def _rows(ids, values, num_positions):
    """Returns logprobs [num_positions, vocab_size]: those of the top ids, NaN for other ids."""
    rows = np.full((num_positions, VOCAB_SIZE), np.nan, np.float32)
    shape = (num_positions, NUM_TOP)
    best = np.array(unpack_ids(ids)).reshape(shape)
    np.put_along_axis(rows, best, np.array(unpack_floats(values)).reshape(shape), axis=1)
    return rows


@pytest.mark.parametrize("way", WAYS)
def test_prompts_and_decoded_tokens(runner, folder, ask, prompts, way, request):
    """More sequences than a bucket has, so that steps are padded; every one decodes."""
    options, times, is_alone = WAYS[way]
    if way == "cascade":
        request.getfixturevalue("eager_to_share")
        prompts = [prompts[0][:288] + ids for ids in prompts]
    engine = runner(**options)
    top, forced = LogprobOptions(num_top=NUM_TOP), PromptLogprobOptions(num_top=NUM_TOP)

    def outputs_of(**wishes):
        requests = [ask(ids, logprobs=top, **wishes) for ids in prompts]
        groups = [[request] for request in requests] if is_alone else [requests]
        return [output for group in groups for output in engine.run(group)]

    for _ in range(times):
        decoded = outputs_of(max_tokens=24)
    assert (engine.loop.load().num_cached_tokens > 0) == (times > 1)
    if way == "cascade":
        assert any(shape.shares_prefixes for shape in engine.executor._graphs._forwards)
    sequences = [ids + output.token_ids for ids, output in zip(prompts, decoded, strict=True)]
    told = [output.event.logprobs for output in decoded]
    after = [_rows(logprobs.top_ids, logprobs.top, 24) for logprobs in told]
    scores = [output.event.prompt_logprobs for output in outputs_of(prompt_logprobs=forced)]
    before = [
        _rows(score.logprobs.top_ids, score.logprobs.top, len(ids) - 1)
        for score, ids in zip(scores, prompts, strict=True)
    ]
    rows = [np.concatenate(pair) for pair in zip(before, after, strict=True)]
    run_gate(folder, lambda _: rows, sequences, torch.bfloat16, "cuda").check()


def test_a_batch_of_one_comes_out_bit_by_bit(runner, ask, prompts):
    engine = runner(enable_prefix_caching=False)
    wish = LogprobOptions(num_top=NUM_TOP)

    def run():
        return engine.run([ask(prompts[0], max_tokens=64, logprobs=wish)])[0].event

    first, second = run(), run()
    assert first.token_ids == second.token_ids
    assert first.logprobs.top == second.logprobs.top
