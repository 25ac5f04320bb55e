"""A captured draw and its logprobs give the same bits as a draw that is launched for its rows.

On a device: pytest -m gpu packages/openinfer-sampler/tests/test_captured.py
"""

import os
import subprocess
import sys

import pytest
import torch

_COMPARE = """
import sys
import numpy as np
import torch
from openinfer_contract import GenerateRequest, LogprobOptions, Sampling, StopRules, pack_ids
from openinfer_sampler import Sampler

device, num_slots, num_rows, vocab_size = sys.argv[1], 9, 6, 300
padding = num_slots - 1
shaped = {"repetition_penalty": 1.4, "frequency_penalty": 0.5}
rows = (
    Sampling(),
    Sampling(top_p=0.6, **shaped),
    Sampling(temperature=0.0, bad_words=(pack_ids([5]),)),
    Sampling(temperature=0.7, top_k=9, **shaped),
)
raw = LogprobOptions(num_top=4, token_ids=pack_ids([3, 299]))
processed = LogprobOptions(num_top=2, mode="processed")


def sampler(samplings, wishes):
    sampler = Sampler(num_slots=num_slots, vocab_size=vocab_size, device=device, backend="triton")
    for slot, (sampling, wish) in enumerate(zip(samplings, wishes)):
        request = GenerateRequest(
            request_id="r",
            prompt_token_ids=pack_ids([7, 8, 9]),
            stop=StopRules(max_tokens=50),
            sampling=sampling,
            logprobs=wish,
        )
        sampler.set(slot, request, seed=slot)
    return sampler


def captured(work):
    if device == "cpu":
        return work
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()
    return lambda: (graph.replay(), result)[1]


def compare(samplings, wishes):
    slots, at = np.array([2, 0, 3, 1]), np.array([0, 2, 3, 5])
    ours, theirs = sampler(samplings, wishes), sampler(samplings, wishes)
    # Rows between those that are drawn are padding, as in a step of prompts and decoded tokens.
    held = torch.full((num_rows,), padding, device=device)
    held[torch.from_numpy(at).to(device)] = torch.from_numpy(slots).to(device)
    logits = torch.zeros(num_rows, vocab_size, device=device)
    positions = torch.full((num_rows,), 3, device=device)
    needs = ours.capturable_needs(slots)
    ours.draw_captured(logits, torch.full_like(held, padding), positions, needs)  # compiles
    draw = captured(lambda: ours.draw_captured(logits, held, positions, needs))
    for step in range(2):
        generator = torch.Generator().manual_seed(step)
        logits.copy_(torch.randn(num_rows, vocab_size, generator=generator) * 2)
        positions.fill_(3 + step)
        drawn = draw()
        got = ours.add_logprobs(drawn, logits, held, positions, needs, slots=slots, at=at)
        assert (got is drawn) == (not any(wishes)), got
        index = torch.from_numpy(at).to(device)
        expected = theirs.sample(logits[index].clone(), slots, positions[index].clone())
        got, expected = (each.unpack(each.packed.cpu().numpy()) for each in (got, expected))
        assert got.token_ids[at].tolist() == expected.token_ids.tolist()
        assert {int(row): got.logprobs.get(row) for row in at} == {
            int(row): expected.logprobs.get(i) for i, row in enumerate(at)
        }, (got, expected)
        assert len(got.logprobs) == sum(wish is not None for wish in wishes)


compare(rows, (None, raw, None, None))
compare(rows, (processed, raw, processed, processed))
compare(rows, (None,) * 4)
compare((Sampling(), Sampling(temperature=0.3)) * 2, (processed, None, raw, None))
"""


@pytest.mark.long
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_same_bits_as_the_draw_for_the_rows_at_hand(device):
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, "-c", _COMPARE, device], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
