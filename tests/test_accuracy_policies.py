"""The accuracy gate over HTTP in a pool too small for all requests, by policy and admission.

Clients of several tenants, sessions and priorities send at once, and their requests preempt each
other. The logprob of every output token is the one that transformers computes.
"""

import json
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from openinfer_testing.torch import TINY_CHECKPOINTS, run_gate, teacher_forced_logprobs

_CHECKPOINT = TINY_CHECKPOINTS[0]
_NUM_TOP = 20
_NUM_OUTPUT = 40
_NUM_BLOCKS = 9
"""Blocks of 16 positions each: room for two sequences at their full length, and no more."""


def _bytes_per_block(folder):
    config = json.loads((folder / "config.json").read_text())
    heads, dim = config["num_key_value_heads"], config["head_dim"]
    return 2 * config["num_hidden_layers"] * heads * dim * 4 * 16


def _ask(server, number, ids):
    """Returns output ids and their logprobs: one row each, NaN for all but the likeliest."""
    body = {
        "model": "served",
        "prompt": ids,
        "max_tokens": _NUM_OUTPUT,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": _NUM_TOP,
        "return_tokens_as_token_ids": True,
        "return_token_ids": True,
        "user": "ab"[number % 2],
        "session_id": str(number % 3),
        "priority": number % 3,
    }
    status, answer = server.post("/v1/completions", body)
    assert status == 200, answer
    (choice,) = answer["choices"]
    rows = np.full((_NUM_OUTPUT, _CHECKPOINT.vocab_size), math.nan, dtype=np.float32)
    for row, top in zip(rows, choice["logprobs"]["top_logprobs"], strict=True):
        for name, value in top.items():
            row[int(name.removeprefix("token_id:"))] = value
    return choice["token_ids"], rows


@pytest.mark.parametrize(
    ("policy", "admission", "flags"),
    [
        ("fair", "optimistic", ()),
        ("priority", "lifetime", ()),
        ("shortest-prefill-first", "optimistic", ("--long-prefill-token-threshold", "7")),
    ],
)
@pytest.mark.timeout(300)
def test_whoever_is_preempted_says_the_same(start_server, tmp_path, policy, admission, flags):
    folder = _CHECKPOINT.write(tmp_path / _CHECKPOINT.name)
    server = start_server(
        *("--model", str(folder), "--served-model-name", "served", "--dtype", "float32"),
        *("--max-model-len", "112", "--scheduling-policy", policy, "--admission", admission),
        *("--kv-cache-memory-bytes", str(_NUM_BLOCKS * _bytes_per_block(folder)), *flags),
    )
    assert server.load()["num_total_blocks"] == _NUM_BLOCKS
    rng = np.random.default_rng(0)
    prompts = [rng.integers(3, _CHECKPOINT.vocab_size, n).tolist() for n in (33, 5, 17, 48, 21, 9)]
    # Prompts that repeat or extend another one cause prefix hits among the preemptions.
    asked = [*prompts, prompts[0], [*prompts[2], *prompts[1]]]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = list(pool.map(lambda pair: _ask(server, *pair), enumerate(asked)))
    load = server.load()
    assert load["num_finished"] == len(asked)
    assert (load["num_preemptions"] > 0) == (admission == "optimistic")
    (group,) = load["cache_groups"]
    assert (group["tier"], group["num_blocks"], group["num_evictions"] > 0) == (
        "device", _NUM_BLOCKS, True,
    )  # fmt: skip

    sequences = [ids + output for ids, (output, _) in zip(asked, answers, strict=True)]
    truth = teacher_forced_logprobs(folder, sequences, torch.float32)
    # Other tests cover the prompts' own positions; here they count as exact.
    rows = [
        np.concatenate([own[: len(ids) - 1], said])
        for own, ids, (_, said) in zip(truth, asked, answers, strict=True)
    ]
    run_gate(folder, lambda _: rows, sequences, torch.float32).check()
