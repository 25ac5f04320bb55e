"""The accuracy gate under every scheduling policy and admission mode, in a pool too small for all.

The order of starts, the chunks of prompts and preemptions do not change which tokens are sampled.
"""

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from openinfer_testing.torch import run_gate, teacher_forced_logprobs

POLICIES = ("FCFS", "Priority", "LongestPrefixMatch", "ShortestPrefillFirst", "Fair")
ADMISSIONS = {
    "optimistic": {"admission": "optimistic"},
    "lifetime": {"admission": "lifetime"},
    "optimistic, small chunks": {
        "admission": "optimistic",
        "long_prefill_token_threshold": 7,
        "max_num_partial_prefills": 2,
        "target_itl_ms": 0.001,
    },
}


@pytest.mark.parametrize("admission", ADMISSIONS)
@pytest.mark.parametrize("policy", POLICIES)
def test_decoded_tokens(engine, ask, prompts, block_bytes, policy, admission):
    runner = engine(
        dtype="float32",
        max_model_len=112,
        kv_cache_bytes=9 * block_bytes,
        scheduling_policy=f"openinfer_scheduler:{policy}",
        **ADMISSIONS[admission],
    )
    # One prompt twice and one that extends another: hits and followers among the preemptions.
    asked = [*prompts, prompts[0], [*prompts[2], *prompts[1]]]
    requests = [
        replace(
            ask(ids, max_tokens=40, wants_all=True),
            priority=number % 3,
            tenant="ab"[number % 2],
            session_id=str(number % 3),
        )
        for number, ids in enumerate(asked)
    ]
    outputs = runner.run(requests)
    is_optimistic = admission != "lifetime"
    assert (runner.loop.load().num_preemptions > 0) == is_optimistic

    sequences = [ids + output.token_ids for ids, output in zip(asked, outputs, strict=True)]
    # Other tests cover logprobs of prompt positions: here they count as exact.
    folder = runner.spec.model_path
    rows = [
        np.concatenate([own[: len(ids) - 1], output.by_id])
        for own, ids, output in zip(
            teacher_forced_logprobs(folder, sequences, torch.float32), asked, outputs, strict=True
        )
    ]
    run_gate(folder, lambda _: rows, sequences, torch.float32).check()
