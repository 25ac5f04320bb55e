"""The accuracy gate over HTTP: what the real server reports is what transformers computes."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from openinfer_testing.torch import TINY_CHECKPOINTS, run_gate

_NUM_TOP = 20
_AT_ONCE = (1, 8)
"""Requests in flight, for one sequence and the next."""
_CHECKPOINTS = {checkpoint.name: checkpoint for checkpoint in TINY_CHECKPOINTS}


def _http_path(server, vocab_size):
    """Forces tokens by asking for one more after every prefix: prefill, prefix hits, batches."""

    def row(prefix):
        status, answer = server.post(
            "/v1/completions",
            {
                "model": "served",
                "prompt": prefix,
                "max_tokens": 1,
                "temperature": 0,
                "ignore_eos": True,
                "logprobs": _NUM_TOP,
                "return_tokens_as_token_ids": True,
            },
        )
        assert status == 200, answer
        logprobs = np.full(vocab_size, math.nan, dtype=np.float32)
        for name, value in answer["choices"][0]["logprobs"]["top_logprobs"][0].items():
            logprobs[int(name.removeprefix("token_id:"))] = value
        return logprobs

    def path(sequences):
        rows = []
        for index, ids in enumerate(sequences):
            with ThreadPoolExecutor(_AT_ONCE[index % 2]) as pool:
                rows.append(
                    np.stack(list(pool.map(row, (ids[: i + 1] for i in range(len(ids) - 1)))))
                )
        return rows

    return path


@pytest.mark.parametrize(
    ("name", "dtype", "options"),
    [
        ("mha-d64-tied", "float32", ()),
        ("gqa2-d64-untied", "bfloat16", ()),
        ("odd7-mqa-d64", "float32", ("--max-num-batched-tokens", "16", "--block-size", "4")),
        ("odd5-mha-d128", "float32", ("--max-num-seqs", "2")),
        ("gqa2-yarn", "float32", ("--no-enable-prefix-caching",)),
        ("gqa2-linear", "float32", ()),
        ("gqa4-d128-bf16", "bfloat16", ()),
    ],
)
@pytest.mark.timeout(300)
def test_the_server_is_as_accurate_as_transformers(start_server, tmp_path, name, dtype, options):
    checkpoint = _CHECKPOINTS[name]
    folder = checkpoint.write(tmp_path / name)
    server = start_server(
        "--model", str(folder), "--served-model-name", "served", "--dtype", dtype, *options
    )
    rng = np.random.default_rng(0)
    lengths = (2, 17, 40, 65, 65, 40)
    sequences = [rng.integers(3, checkpoint.vocab_size, size=n).tolist() for n in lengths]
    path = _http_path(server, checkpoint.vocab_size)
    report = run_gate(folder, path, sequences, getattr(torch, dtype))
    report.check()
    assert report.num_compared >= _NUM_TOP * sum(n - 1 for n in lengths)
    server.assert_idle()
