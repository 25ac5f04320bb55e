"""`--engine sim` without a server: options, ids, and steps that take real time."""

import json
import time

import numpy as np
import pytest

from openinfer_contract import (
    EventBuffer,
    Finished,
    GenerateRequest,
    Rejected,
    Sampling,
    StopRules,
    pack_ids,
    unpack_ids,
)
from openinfer_engine import EngineOptions, InProcessEngine, LaunchSpec, OptionRejected
from openinfer_sim import ENGINE, SimError, launch


@pytest.fixture
def checkpoint(tmp_path):
    files = {
        "config.json": {"vocab_size": 300, "eos_token_id": 2},
        "generation_config.json": {"eos_token_id": [2, 5]},
        "tokenizer.json": {
            "model": {"vocab": {f"t{i}": i for i in range(290)}},
            "added_tokens": [{"id": i} for i in (0, 1, 2, 3, 5)],
        },
    }
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    return str(tmp_path)


def _spec(path, line_options=(), **engine):
    options = EngineOptions(seed=1, **engine)
    return LaunchSpec(
        model_path=path, model_line="sim", engine=options, line_options=dict(line_options)
    )


def _generate(engine, request_id="a", max_tokens=8, **options):
    stop = options.pop("stop", StopRules(max_tokens=max_tokens))
    request = GenerateRequest(
        request_id=request_id, prompt_token_ids=pack_ids(range(10, 30)), stop=stop, **options
    )
    buffer = EventBuffer()
    engine.submit(request, buffer)
    ids = []
    while True:
        event = buffer.get_blocking(10.0)
        ids += unpack_ids(event.token_ids)
        if event.end is not None:
            return ids, event.end


def test_the_plan_follows_checkpoint_model_and_options(checkpoint):
    plan = ENGINE.plan(_spec(checkpoint))
    assert (plan.vocab_size, plan.eos_token_ids) == (300, (2, 5))
    assert (plan.max_num_seqs, plan.max_num_batched_tokens) == (256, 8192)
    assert plan.max_model_len == 262_144
    assert plan.device == "modelled h200"
    small = {"sim_model": "qwen3-8b", "sim_device": "rtx-5090"}
    plan = ENGINE.plan(_spec(checkpoint, small, max_num_seqs=8, max_num_batched_tokens=64))
    assert (plan.max_num_seqs, plan.max_num_batched_tokens) == (8, 64)
    assert plan.max_model_len == 40_960
    plan = ENGINE.plan(_spec(checkpoint, {"sim_model": "kimi-k2"}, tensor_parallel_size=8))
    assert (plan.device, plan.max_model_len) == ("modelled 8 h200", 262_144)
    with pytest.raises(SimError, match="--tensor-parallel-size 8"):
        ENGINE.plan(_spec(checkpoint, {"sim_model": "kimi-k2"}))


def test_a_default_length_shrinks_to_the_cache(checkpoint):
    assert ENGINE.plan(_spec(checkpoint, kv_cache_bytes=147_456 * 1000)).max_model_len == 992
    with pytest.raises(SimError, match="max_model_len"):
        ENGINE.plan(_spec(checkpoint, kv_cache_bytes=147_456 * 1000, max_model_len=1000))


@pytest.mark.parametrize(
    ("engine", "line", "named"),
    [
        ({"device": "cuda"}, {}, "device.*--sim-device"),
        ({"dtype": "float16"}, {}, "dtype"),
        ({"num_threads": 2}, {}, "num_threads"),
        ({"load_format": "dummy"}, {}, "load_format"),
        ({}, {"sim_model": "gpt-1"}, "sim_model.*qwen3-4b"),
        ({}, {"sim_device": "abacus"}, "sim_device.*h200"),
        ({}, {"sim_output_tokens": 0}, "sim_output_tokens"),
        ({}, {"sim_colour": "red"}, "sim_colour"),
    ],
)
def test_an_option_is_consumed_or_rejected(checkpoint, engine, line, named):
    with pytest.raises(OptionRejected, match=named):
        ENGINE.plan(_spec(checkpoint, line, **engine))


def test_an_unknown_engine_option_is_rejected(checkpoint, monkeypatch):
    monkeypatch.setattr("openinfer_sim.plugins._engine._HONOURED", frozenset())
    with pytest.raises(OptionRejected, match=r"max_num_seqs.*not modelled"):
        ENGINE.plan(_spec(checkpoint, max_num_seqs=8))


def test_no_core_is_kept_awake_for_a_device_that_is_none(checkpoint):
    executor = launch(_spec(checkpoint))
    assert (executor.info.depth, executor.info.has_device) == (2, False)
    executor.close()


def test_it_answers_text_ids_in_the_time_the_model_takes(checkpoint):
    spec = _spec(checkpoint)
    engine = InProcessEngine(lambda: launch(spec), spec.engine)
    try:
        begun = time.monotonic()
        ids, end = _generate(engine, max_tokens=100)
        took = time.monotonic() - begun
        assert isinstance(end, Finished)
        assert end.reason == "length"
        assert len(ids) == 100
        assert not set(ids) & {0, 1, 2, 3, 5, *range(290, 300)}
        assert took > 100 * 3.3e-3, "a step of this model takes 3.4 ms"
        same = [_generate(engine, f"s{i}", sampling=Sampling(seed=9))[0] for i in range(2)]
        assert same[0] == same[1]
    finally:
        engine.close()


def test_it_ends_where_it_is_told_to(checkpoint):
    spec = _spec(checkpoint, {"sim_output_tokens": 5, "sim_model": "qwen3-0_6b"})
    engine = InProcessEngine(lambda: launch(spec), spec.engine)
    try:
        done = [_generate(engine, f"r{i}", max_tokens=500) for i in range(40)]
        assert {end.reason for _, end in done} == {"stop"}
        assert np.mean([len(ids) for ids, _ in done]) == pytest.approx(5, rel=0.5)
        stop = StopRules(max_tokens=60, ignore_eos=True)
        assert len(_generate(engine, "full", stop=stop)[0]) == 60
        refused = _generate(engine, "x", stop=StopRules(max_tokens=5, min_tokens=3))[1]
        assert isinstance(refused, Rejected)
        assert refused.field == "stop.min_tokens"
    finally:
        engine.close()
