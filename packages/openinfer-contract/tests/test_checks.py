from collections.abc import Callable
from typing import Any

import pytest

from openinfer_contract import (
    FEATURES,
    Adapter,
    CacheOptions,
    EngineInfo,
    GenerateRequest,
    Grammar,
    LogprobOptions,
    PromptLogprobOptions,
    Rejected,
    Sampling,
    StopRules,
    banning_fields,
    check_length,
    check_request,
    check_sampling,
    no_token_left_message,
    pack_ids,
)

Make = Callable[..., Any]
NAN, INF = float("nan"), float("inf")

BAD_SAMPLING = [
    *[("temperature", v) for v in (-0.1, 100.5, NAN, INF)],
    *[("top_p", v) for v in (0.0, -0.5, 1.0001, NAN)],
    *[("min_p", v) for v in (-0.01, 1.01, NAN)],
    *[("repetition_penalty", v) for v in (0.0, -1.0, 1e-40, 0.0099, 101.0, INF)],
    *[("presence_penalty", v) for v in (-2.1, 2.1, NAN)],
    *[("frequency_penalty", v) for v in (-2.1, 2.1, NAN)],
    *[("top_k", v) for v in (0, -1)],
    *[("seed", v) for v in (-1, 2**64)],
    ("logit_bias", ((1, INF),)),
    ("logit_bias", ((1, 0.5), (2, NAN))),
    ("logit_bias", ((1, -100.5),)),
    ("allowed_token_ids", b""),
    ("bad_words", (pack_ids([1]), b"")),
]
GOOD_SAMPLING = [
    {},
    {"temperature": 0.0, "top_p": 1.0, "min_p": 0.0, "top_k": 1, "seed": 0},
    {"temperature": 100.0, "top_p": 0.001, "min_p": 1.0, "seed": 2**64 - 1},
    {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 0.01},
    {"logit_bias": ((5, -100.0), (6, 100.0))},
]


@pytest.mark.parametrize(("field", "value"), BAD_SAMPLING)
def test_bad_sampling_names_the_field(field: str, value: object) -> None:
    rejected = check_sampling(Sampling(**{field: value}))  # type: ignore[arg-type]
    assert rejected is not None
    assert (rejected.kind, rejected.field) == ("invalid", f"sampling.{field}")
    assert f"sampling.{field}" in rejected.message


@pytest.mark.parametrize("values", GOOD_SAMPLING)
def test_good_sampling_passes(values: dict[str, Any]) -> None:
    assert check_sampling(Sampling(**values)) is None


@pytest.mark.parametrize(
    "words",
    [[pack_ids([1])] * 257, [pack_ids([1]), pack_ids(range(33))]],
    ids=["many", "long"],
)
def test_bad_words_keep_to_the_limits(make_info: Make, make_request: Make, words: Any) -> None:
    fits = make_request(sampling=Sampling(bad_words=(pack_ids(range(32)),) * 256))
    assert check_request(fits, make_info()) is None
    rejected = check_request(make_request(sampling=Sampling(bad_words=tuple(words))), make_info())
    assert rejected is not None
    assert (rejected.kind, rejected.field) == ("invalid", "sampling.bad_words")


def _rejection(make_info: Make, make_request: Make, **changes: Any) -> Rejected:
    rejected = check_request(make_request(**changes), make_info())
    assert rejected is not None
    assert rejected.message
    return rejected


def test_a_plain_request_passes(make_info: Make, make_request: Make) -> None:
    assert check_request(make_request(), make_info(honoured=frozenset())) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_token_ids": pack_ids(range(5000))},
        {"num_output_prefix": 3},
        {"stop": StopRules(max_tokens=4, min_tokens=5)},
    ],
)
def test_what_depends_on_the_prompt_is_the_same_rejection_alone(
    changes: dict[str, Any], make_info: Make, make_request: Make
) -> None:
    request, info = make_request(**changes), make_info()
    assert check_length(request, info) == check_request(request, info) is not None
    assert check_length(make_request(), info) is None


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("request_id", {"request_id": ""}),
        ("prompt_token_ids", {"prompt_token_ids": b""}),
        ("prompt_token_ids", {"prompt_token_ids": b"12345"}),
        ("cache.boundaries", {"cache": CacheOptions(boundaries=b"12345")}),
        ("cache.hint", {"cache": CacheOptions(hint="pinn")}),  # type: ignore[arg-type]
        ("deadline", {"deadline": NAN}),
        ("sampling.top_p", {"sampling": Sampling(top_p=0.0)}),
        ("stop.max_tokens", {"stop": StopRules(max_tokens=0)}),
        ("stop.min_tokens", {"stop": StopRules(max_tokens=4, min_tokens=5)}),
        ("stop.min_tokens", {"stop": StopRules(max_tokens=4, min_tokens=-1)}),
        ("stop.stop_token_ids", {"stop": StopRules(max_tokens=4, stop_token_ids=(1, 2, 3, 4))}),
        ("stop.stop_token_ids", {"stop": StopRules(max_tokens=4, stop_token_ids=(1000,))}),
        ("stop.stop_token_ids", {"stop": StopRules(max_tokens=4, stop_token_ids=(-1,))}),
        ("num_output_prefix", {"num_output_prefix": 3}),
        ("num_output_prefix", {"num_output_prefix": -1}),
        ("num_output_prefix", {"num_output_prefix": 2, "stop": StopRules(max_tokens=2)}),
        ("logprobs", {"logprobs": LogprobOptions(num_top=6)}),
        ("logprobs", {"logprobs": LogprobOptions(num_top=-1)}),
        ("logprobs", {"logprobs": LogprobOptions(token_ids=pack_ids([1, 1000]))}),
        ("logprobs", {"logprobs": LogprobOptions(token_ids=b"123")}),
        ("prompt_logprobs", {"prompt_logprobs": PromptLogprobOptions(num_top=6)}),
        ("prompt_logprobs", {"prompt_logprobs": PromptLogprobOptions(start=-1)}),
    ],
)
def test_nonsense_is_invalid_by_field(
    field: str, changes: dict[str, Any], make_info: Make, make_request: Make
) -> None:
    rejected = _rejection(make_info, make_request, **changes)
    assert (rejected.kind, rejected.field) == ("invalid", field)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_output_prefix": 2, "stop": StopRules(max_tokens=3)},
        {"stop": StopRules(max_tokens=4, min_tokens=4, stop_token_ids=(0, 999))},
        {"logprobs": LogprobOptions(num_top=5, token_ids=pack_ids([0, 999]))},
        {"prompt_token_ids": pack_ids(range(99))},
    ],
)
def test_values_at_the_bound_pass(
    changes: dict[str, Any], make_info: Make, make_request: Make
) -> None:
    assert check_request(make_request(**changes), make_info()) is None


@pytest.mark.parametrize("length", [100, 101])
def test_a_prompt_without_room_is_too_long(
    length: int, make_info: Make, make_request: Make
) -> None:
    prompt = pack_ids(range(length))
    rejected = _rejection(make_info, make_request, prompt_token_ids=prompt)
    assert (rejected.kind, rejected.field) == ("too_long", "prompt_token_ids")
    assert str(length) in rejected.message


USES: dict[str, dict[str, Any]] = {
    "sampling.seed": {"sampling": Sampling(seed=0)},
    "sampling.repetition_penalty": {"sampling": Sampling(repetition_penalty=1.1)},
    "sampling.presence_penalty": {"sampling": Sampling(presence_penalty=0.1)},
    "sampling.frequency_penalty": {"sampling": Sampling(frequency_penalty=0.1)},
    "sampling.logit_bias": {"sampling": Sampling(logit_bias=((1, 1.0),))},
    "sampling.allowed_token_ids": {"sampling": Sampling(allowed_token_ids=pack_ids([1]))},
    "sampling.bad_words": {"sampling": Sampling(bad_words=(pack_ids([1]),))},
    "stop.min_tokens": {"stop": StopRules(max_tokens=4, min_tokens=1)},
    "logprobs": {"logprobs": LogprobOptions()},
    "logprobs.token_ids": {"logprobs": LogprobOptions(token_ids=pack_ids([1]))},
    "logprobs.mode": {"logprobs": LogprobOptions(mode="processed")},
    "prompt_logprobs": {"prompt_logprobs": PromptLogprobOptions()},
    "grammar": {"grammar": Grammar(kind="json_object")},
    "adapter": {"adapter": Adapter("a", b"uid")},
    "cache.hint": {"cache": CacheOptions(hint="pin")},
    "deadline": {"deadline": 1.0},
    "dp_rank": {"dp_rank": 0},
    "speculate": {"speculate": True},
    "want": {"want": ("hidden_states",)},
    "kv_transfer": {"kv_transfer": b""},
}


def test_an_adapter_without_a_uid_is_rejected(make_info: Make, make_request: Make) -> None:
    request: GenerateRequest = make_request(adapter=Adapter("a", b""))
    rejected = check_request(request, make_info())
    assert rejected is not None
    assert (rejected.kind, rejected.field) == ("invalid", "adapter")


def test_every_feature_has_an_example() -> None:
    assert set(USES) == set(FEATURES)


@pytest.mark.parametrize("feature", sorted(USES))
def test_a_feature_that_is_not_honoured_is_rejected_by_name(
    feature: str, make_info: Make, make_request: Make
) -> None:
    info: EngineInfo = make_info(honoured=frozenset(FEATURES) - {feature})
    request: GenerateRequest = make_request(**USES[feature])
    rejected = check_request(request, info)
    assert rejected is not None
    assert (rejected.kind, rejected.field) == ("unsupported", feature)
    assert check_request(request, make_info()) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"logprobs": LogprobOptions(num_top=10_000)},
        {"logprobs": LogprobOptions(token_ids=b"abc")},
        {"prompt_logprobs": PromptLogprobOptions(start=-1)},
    ],
    ids=["num_top", "token_ids", "start"],
)
def test_what_is_not_supported_has_no_bounds(
    make_info: Make, make_request: Make, fields: dict[str, object]
) -> None:
    (name,) = fields
    request: GenerateRequest = make_request(**fields)
    rejected = check_request(request, make_info(honoured=frozenset()))
    assert rejected is not None
    assert rejected.message == f"{name} is not supported by this engine (test)"


def test_no_speculation_can_be_asked_of_anyone(make_info: Make, make_request: Make) -> None:
    info = make_info(honoured=frozenset())
    assert check_request(make_request(speculate=False), info) is None


@pytest.mark.parametrize(
    ("sampling", "stop", "is_possible"),
    [
        ({}, {}, True),
        ({}, {"min_tokens": 2}, False),
        ({}, {"min_tokens": 2, "ignore_eos": True}, True),
        ({"allowed_token_ids": pack_ids([2, 7])}, {"min_tokens": 2}, True),
        ({"allowed_token_ids": pack_ids([2, 7])}, {"min_tokens": 2, "stop_token_ids": (7,)}, False),
        ({"bad_words": (pack_ids([2]),)}, {}, False),
        ({"bad_words": (pack_ids([2, 2]),)}, {}, True),
    ],
)
def test_a_request_that_rules_out_every_token_is_refused(
    make_info: Make, make_request: Make, sampling: Any, stop: Any, is_possible: bool
) -> None:
    request = make_request(
        sampling=Sampling(**{"allowed_token_ids": pack_ids([2])} | sampling),
        stop=StopRules(max_tokens=8, **stop),
    )
    rejected = check_request(request, make_info())
    assert (rejected is None) == is_possible
    if rejected is not None:
        assert (rejected.kind, rejected.field) == ("invalid", "sampling.allowed_token_ids")
        assert "min_tokens" in rejected.message


def test_min_tokens_that_an_output_prefix_has_reached_rule_nothing_out(
    make_info: Make, make_request: Make
) -> None:
    request = make_request(
        sampling=Sampling(allowed_token_ids=pack_ids([2])),
        stop=StopRules(max_tokens=8, min_tokens=2),
        num_output_prefix=2,
    )
    assert check_request(request, make_info()) is None


def test_the_fields_that_ban_tokens_are_named(make_request: Make) -> None:
    assert banning_fields(make_request()) == ()
    request = make_request(
        sampling=Sampling(allowed_token_ids=pack_ids([2]), bad_words=(pack_ids([3]),)),
        stop=StopRules(max_tokens=8, min_tokens=2),
        grammar=Grammar(kind="regex", text="a"),
    )
    fields = banning_fields(request)
    assert fields == (
        "grammar",
        "sampling.allowed_token_ids",
        "sampling.bad_words",
        "stop.min_tokens",
    )
    assert no_token_left_message(fields[1:]).endswith(
        "by allowed_token_ids and bad_words and min_tokens"
    )
