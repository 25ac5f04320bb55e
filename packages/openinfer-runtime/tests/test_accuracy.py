"""The executor against transformers on every path, driven by the real scheduler."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from openinfer_contract import PromptLogprobOptions, unpack_floats, unpack_ids
from openinfer_testing.torch import next_token_only, run_gate, teacher_forced_logprobs

NUM_TOP = 20
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def prompt_rows(output, length, vocab_size):
    """[length - 1, vocab_size] from prompt logprobs: the tokens themselves and the top 20."""
    scores = output.event.prompt_logprobs
    assert scores.start == 1
    rows = np.full((length - 1, vocab_size), np.nan, np.float32)
    ids = np.array(unpack_ids(scores.logprobs.top_ids)).reshape(length - 1, NUM_TOP)
    top = np.array(unpack_floats(scores.logprobs.top)).reshape(length - 1, NUM_TOP)
    np.put_along_axis(rows, ids, top, axis=1)
    return rows


@pytest.fixture
def forced(ask):
    """A path that forces sequences by asking for their prompt logprobs."""

    def path_of(engine, *, is_batched):
        def path(sequences):
            options = PromptLogprobOptions(num_top=NUM_TOP)
            requests = [ask(ids, prompt_logprobs=options) for ids in sequences]
            batches = [requests] if is_batched else [[request] for request in requests]
            outputs = [output for batch in batches for output in engine.run(batch)]
            vocab_size = engine.executor.info.vocab_size
            return [
                prompt_rows(output, len(ids), vocab_size)
                for output, ids in zip(outputs, sequences, strict=True)
            ]

        return path

    return path_of


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", ["alone", "batched", "chunked"])
def test_forced_prompts(engine, forced, prompts, way, dtype):
    budget = 8 if way == "chunked" else 512
    runner = engine(dtype=dtype, max_num_batched_tokens=budget)
    path = forced(runner, is_batched=way != "alone")
    run_gate(runner.spec.model_path, path, prompts, DTYPES[dtype]).check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_position_by_position_over_a_cached_prefix(engine, ask, prompts, dtype):
    # Every position is a request of its own, whose prompt is cached but for its last block.
    runner = engine(dtype=dtype)

    def path(sequences):
        return [
            np.concatenate(
                [
                    runner.run([ask(ids[:end], wants_all=True)])[0].by_id
                    for end in range(1, len(ids))
                ]
            )
            for ids in sequences
        ]

    run_gate(runner.spec.model_path, path, prompts, DTYPES[dtype]).check()
    assert runner.loop.load().num_cached_tokens > 0


WAYS = {
    "alone": ({}, False),
    "batched": ({}, True),
    "chunked": ({"max_num_batched_tokens": 9}, True),
    "preempted": ({"kv_cache_bytes": 9, "max_model_len": 112}, True),
    "prefix_hit": ({}, "again"),
    "padded": ({}, "padded"),
}


@pytest.fixture
def decoded(engine, ask, prompts, block_bytes):
    """Decodes the prompts on one path and returns the gate's report."""

    def report_of(way, dtype, fault=lambda model: None):
        options, is_batched = WAYS[way]
        if "kv_cache_bytes" in options:
            scale = 1 if dtype == "float32" else 0.5
            options = options | {"kv_cache_bytes": int(9 * block_bytes * scale)}
        runner = engine(dtype=dtype, **options)
        if is_batched == "padded":
            runner.pad_steps()
        fault(runner.executor._model)
        requests = [ask(ids, max_tokens=40, wants_all=True) for ids in prompts]
        if is_batched:
            outputs = runner.run(requests)
            if is_batched == "again":
                assert runner.loop.load().num_cached_tokens == 0
                outputs = runner.run(requests)
                assert runner.loop.load().num_cached_tokens > 0
        else:
            outputs = [runner.run([request])[0] for request in requests]
        assert (runner.loop.load().num_preemptions > 0) == (way == "preempted")
        return gate_report(runner, prompts, outputs, DTYPES[dtype])

    return report_of


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("way", WAYS)
def test_decoded_tokens(decoded, way, dtype):
    decoded(way, dtype).check()


def wrong_theta(model):
    rotary = model.layers[0].attention.rotary
    num_positions, head_dim = rotary.cos_sin.shape
    frequencies = 1_000_000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(num_positions).float(), frequencies)
    rotary.cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)


def one_stale_block(model):
    forward = model.forward

    def stale(inputs, cache):
        table = inputs.block_table.clone()
        table[inputs.seq_lens > 32, 0] = table[inputs.seq_lens > 32, 1]
        return forward(replace(inputs, block_table=table), cache)

    model.forward = stale


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", [wrong_theta, one_stale_block], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_the_gate_goes_red(decoded, way, fault, dtype):
    report = decoded(way, dtype, fault)
    assert not report.is_accurate, report


def gate_report(runner, prompts, outputs, compute):
    """Returns the gate's report over logprobs of all ids at every output position."""
    sequences = [ids + output.token_ids for ids, output in zip(prompts, outputs, strict=True)]
    folder = runner.spec.model_path
    own = teacher_forced_logprobs(folder, sequences, compute)
    rows = [
        np.concatenate([next_token_only(rows[: len(ids) - 1], ids), output.by_id])
        for rows, ids, output in zip(own, prompts, outputs, strict=True)
    ]
    return run_gate(folder, lambda _: rows, sequences, compute)


@pytest.mark.parametrize("is_padded", [False, True], ids=["exact", "padded"])
def test_decoded_tokens_over_a_shared_prefix(
    engine, ask, prompts, eager_to_share, monkeypatch, is_padded
):
    """Groups stay right while rows start and end, and a model may read groups or tables."""
    runner = engine(max_num_seqs=3)
    pad = runner.pad_steps()  # an executor on a CPU looks for groups in captured steps alone
    if not is_padded:
        pad.executor._graphs = None
    model, num_shared = runner.executor._model, []
    forward = model.forward

    def checked(inputs, cache):
        if inputs.shared is not None:
            num_shared.append(check_shared(inputs, cache.block_size))
        return forward(inputs, cache)

    monkeypatch.setattr(model, "forward", checked)
    prompts = [prompts[3][:48] + ids for ids in prompts]
    requests = [
        ask(ids, max_tokens=20 + 7 * index, wants_all=True) for index, ids in enumerate(prompts)
    ]
    runner.run(requests[:1])
    outputs = runner.run(requests)
    assert {2, 3} <= set(num_shared)
    gate_report(runner, prompts, outputs, torch.float32).check()


def check_shared(inputs, block_size):
    """Asserts that all members have their unit's blocks; returns the sequences with units."""
    units, rows = inputs.shared.units, inputs.shared.rows
    for num_members, begin, end, _, *members in units.tolist():
        if num_members:
            blocks = inputs.block_table[
                members[:num_members], begin // block_size : end // block_size
            ]
            assert (blocks == blocks[0]).all()
            assert (inputs.seq_lens[members[:num_members]] > end).all()
            assert (rows[members[:num_members], 0] >= end).all()
    return int((rows[:, 3] > 0).sum())
