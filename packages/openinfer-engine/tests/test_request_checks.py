from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from openinfer_contract import FEATURES, EngineInfo, Grammar, Sampling, StopRules, pack_ids
from openinfer_engine import EngineOptions, build_engine_info
from openinfer_engine.loop._request_checks import check_intake
from openinfer_testing import ZeroCostExecutor

Request = Callable[..., Any]
WRONG = pack_ids([3, 1000])


@pytest.fixture
def info() -> EngineInfo:
    info = build_engine_info(ZeroCostExecutor().info, EngineOptions())
    return replace(info, honoured=frozenset(FEATURES))


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("prompt_token_ids", {"prompt_token_ids": WRONG}),
        ("sampling.allowed_token_ids", {"sampling": Sampling(allowed_token_ids=WRONG)}),
        ("sampling.bad_words", {"sampling": Sampling(bad_words=(pack_ids([1]), WRONG))}),
        (
            "grammar.start_after",
            {
                "grammar": Grammar(kind="json_object", start_after=WRONG),
                "stop": StopRules(max_tokens=8),
            },
        ),
    ],
)
def test_ids_outside_the_vocabulary(
    field: str, changes: dict[str, Any], info: EngineInfo, make_request: Request
) -> None:
    rejected = check_intake(replace(make_request(), **changes), info)
    assert rejected is not None
    assert (rejected.kind, rejected.field) == ("invalid", field)
    assert "holds 1000 at position 1" in rejected.message


def test_a_bias_outside_the_vocabulary(info: EngineInfo, make_request: Request) -> None:
    request = make_request(sampling=Sampling(logit_bias=((1000, 1.0),)))
    rejected = check_intake(request, info)
    assert rejected is not None
    assert rejected.field == "sampling.logit_bias"


def test_a_cut_column(info: EngineInfo, make_request: Request) -> None:
    rejected = check_intake(make_request(sampling=Sampling(allowed_token_ids=b"123")), info)
    assert rejected is not None
    assert "u32 column" in rejected.message


def test_the_contract_is_asked_first(info: EngineInfo, make_request: Request) -> None:
    rejected = check_intake(make_request([2000], max_tokens=0), info)
    assert rejected is not None
    assert rejected.field == "stop.max_tokens"


def test_the_last_id_passes(info: EngineInfo, make_request: Request) -> None:
    assert check_intake(make_request([0, 999]), info) is None
