"""The accuracy gate over HTTP: the real server reports the logprobs that transformers computes."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
import torch

from openinfer_testing.torch import TINY_CHECKPOINTS, run_gate

_NUM_TOP = 20
_WAYS = ("one by one", "eight at once", "as prompts")
"""How requests are sent: the sequences take these ways in turn."""
_CHECKPOINTS = {checkpoint.name: checkpoint for checkpoint in TINY_CHECKPOINTS}


def _http_path(server, vocab_size):
    """Asks for one token after every prefix, or scores all: prefill, prefix hits, batches."""

    def ask(prompt, **fields):
        body = {"model": "served", "prompt": prompt, "temperature": 0, "ignore_eos": True}
        body |= {"logprobs": _NUM_TOP, "return_tokens_as_token_ids": True} | fields
        status, answer = server.post("/v1/completions", body)
        assert status == 200, answer
        return [
            row_of(top)
            for top in answer["choices"][0]["logprobs"]["top_logprobs"]
            if top is not None
        ]

    def row_of(top):
        logprobs = np.full(vocab_size, math.nan, dtype=np.float32)
        for name, value in top.items():
            logprobs[int(name.removeprefix("token_id:"))] = value
        return logprobs

    def rows_of(ids, way):
        if way == "as prompts":
            return ask(ids, max_tokens=0, echo=True)
        prefixes = [ids[: i + 1] for i in range(len(ids) - 1)]
        with ThreadPoolExecutor(8 if way == "eight at once" else 1) as pool:
            return [row for (row,) in pool.map(lambda ids: ask(ids, max_tokens=1), prefixes)]

    def path(sequences):
        return [np.stack(rows_of(ids, way)) for ids, way in zip(sequences, cycle(_WAYS))]

    return path


@pytest.mark.parametrize(
    ("name", "dtype", "options"),
    [
        ("mha-d64-tied", "float32", ("--max-num-seqs", "2")),
        ("gqa2-d64-untied", "bfloat16", ()),
        ("odd7-mqa-d64", "float32", ("--max-num-batched-tokens", "16", "--block-size", "4")),
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
    lengths = (2, 17, 65, 40, 65, 40)
    sequences = [rng.integers(3, checkpoint.vocab_size, size=n).tolist() for n in lengths]
    rows = _http_path(server, checkpoint.vocab_size)(sequences)
    report = run_gate(folder, lambda _: rows, sequences, getattr(torch, dtype))
    report.check()
    assert report.num_compared >= _NUM_TOP * sum(n - 1 for n in lengths)
    server.assert_idle()

    # Negative control: the server's logprobs are not those of a model with another theta.
    other = replace(checkpoint, rope_theta=checkpoint.rope_theta * 10).write(tmp_path / "other")
    report = run_gate(other, lambda _: rows, sequences, getattr(torch, dtype))
    assert not report.is_accurate, report
