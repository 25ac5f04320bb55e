from collections.abc import Callable
from typing import Any

import pytest

from openinfer_contract import FEATURES, EngineInfo, GenerateRequest, Limits, StopRules, pack_ids


@pytest.fixture
def make_info() -> Callable[..., EngineInfo]:
    def make(**changes: Any) -> EngineInfo:
        values: dict[str, Any] = {
            "engine": "test 1",
            "model_line": "test",
            "model_fingerprint": "f",
            "dtype": "float32",
            "vocab_size": 1000,
            "eos_token_ids": (2,),
            "limits": Limits(
                max_model_len=100,
                max_num_seqs=4,
                max_num_batched_tokens=64,
                max_queued_requests=8,
                max_queued_tokens=800,
                max_logprobs=5,
                max_stop_token_ids=3,
            ),
            "cache_groups": (),
            "hash_recipe": "h",
            "honoured": frozenset(FEATURES),
            "commands": frozenset({"get_load"}),
        }
        return EngineInfo(**values | changes)

    return make


@pytest.fixture
def make_request() -> Callable[..., GenerateRequest]:
    def make(**changes: Any) -> GenerateRequest:
        values: dict[str, Any] = {
            "request_id": "r",
            "prompt_token_ids": pack_ids([1, 2, 3]),
            "stop": StopRules(max_tokens=8),
        }
        return GenerateRequest(**values | changes)

    return make
