import numpy as np
import pytest

from openinfer import RequestRejected, SamplingParams
from openinfer_contract import (
    FEATURES,
    EngineInfo,
    Limits,
    LogprobOptions,
    PromptLogprobOptions,
    Sampling,
    StopRules,
    pack_ids,
)
from openinfer_text import FieldRejected, GenerationDefaults, RequestLowering

_DEFAULTS = GenerationDefaults(
    temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.1
)
_INFO = EngineInfo(
    engine="fake",
    model_line="fake",
    model_fingerprint="0",
    dtype="float32",
    vocab_size=300,
    eos_token_ids=(),
    limits=Limits(
        max_model_len=10,
        max_num_seqs=8,
        max_num_batched_tokens=512,
        max_queued_requests=64,
        max_queued_tokens=65536,
        max_logprobs=20,
    ),
    cache_groups=(),
    hash_recipe="none",
    honoured=frozenset(FEATURES),
    commands=frozenset(),
)


def _lower(params, *, num_prompt_tokens=3, sample=0, defaults=None, eos=()):
    lowering = RequestLowering(
        params,
        _INFO,
        defaults=defaults or GenerationDefaults(),
        eos_token_ids=eos,
    )
    return lowering.build("r", pack_ids(range(1, num_prompt_tokens + 1)), sample=sample)


def test_the_neutral_request():
    request = _lower(SamplingParams())
    assert request.sampling == Sampling()
    assert request.stop == StopRules(max_tokens=7)
    assert request.logprobs is None
    assert request.prompt_token_ids == pack_ids([1, 2, 3])


def test_the_checkpoint_fills_in_what_was_left_out():
    assert _lower(SamplingParams(), defaults=_DEFAULTS).sampling == Sampling(
        temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.1
    )


def test_what_was_given_wins_zero_included():
    params = SamplingParams(temperature=0.0, top_k=5, top_p=1.0, min_p=0.0, repetition_penalty=1.0)
    assert _lower(params, defaults=_DEFAULTS).sampling == Sampling(temperature=0.0, top_k=5)


@pytest.mark.parametrize("off", [0, -1])
def test_top_k_can_be_switched_off(off):
    assert _lower(SamplingParams(top_k=off), defaults=_DEFAULTS).sampling.top_k is None


@pytest.mark.parametrize(
    ("max_tokens", "num_prompt_tokens", "lowered"),
    [(5, 3, 5), (100, 3, 7), (None, 3, 7), (None, 9, 1), (4, 9, 1)],
)
def test_output_is_clamped_to_the_room_left(max_tokens, num_prompt_tokens, lowered):
    params = SamplingParams(max_tokens=max_tokens)
    assert _lower(params, num_prompt_tokens=num_prompt_tokens).stop.max_tokens == lowered


@pytest.mark.parametrize("num_prompt_tokens", [10, 12])
def test_a_prompt_without_room_for_output_is_refused(num_prompt_tokens):
    with pytest.raises(FieldRejected) as caught:
        _lower(SamplingParams(max_tokens=None), num_prompt_tokens=num_prompt_tokens)
    assert caught.value.rejected.field == "prompt_token_ids"


def test_samples_draw_from_seeds_that_follow_each_other():
    params = SamplingParams(seed=2**64 - 1, n=2)
    assert _lower(params).sampling.seed == 2**64 - 1
    assert _lower(params, sample=1).sampling.seed == 0
    assert _lower(SamplingParams(), sample=1).sampling.seed is None


def test_everything_else_is_carried_over():
    request = _lower(
        SamplingParams(
            min_tokens=2,
            stop_token_ids=[7, 8, 7],
            ignore_eos=True,
            logprobs=3,
            logprob_token_ids=[4],
            logprobs_mode="processed",
            prompt_logprobs=1,
            cache_salt="s",
            priority=-2,
            deadline_ms=1000,
            session_id="talk",
            presence_penalty=0.1,
            frequency_penalty=0.2,
            logit_bias={5: 1.5},
            allowed_token_ids=[5, 6],
        ),
        eos=(9,),
    )
    assert request.stop == StopRules(
        max_tokens=7, min_tokens=2, stop_token_ids=(7, 8), ignore_eos=True
    )
    assert request.logprobs == LogprobOptions(num_top=3, token_ids=pack_ids([4]), mode="processed")
    assert request.prompt_logprobs == PromptLogprobOptions(num_top=1)
    assert (request.cache.salt, request.priority, request.session_id) == (b"s", -2, "talk")
    assert request.deadline - request.arrival == pytest.approx(1)
    assert request.sampling == Sampling(
        presence_penalty=0.1,
        frequency_penalty=0.2,
        logit_bias=((5, 1.5),),
        allowed_token_ids=pack_ids([5, 6]),
    )


def test_eos_ids_the_engine_does_not_know_become_stops():
    request = _lower(SamplingParams(stop_token_ids=[7]), eos=(9, 7))
    assert request.stop.stop_token_ids == (7, 9)


@pytest.mark.parametrize(("stop", "stops"), [((), ()), ("x", ("x",)), (["x", "y"], ("x", "y"))])
def test_stop_strings(stop, stops):
    assert SamplingParams(stop=stop).stops == stops


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("max_tokens", 0),
        ("stop", ""),
        ("stop", ["x", ""]),
        ("bad_words", [""]),
        ("deadline_ms", 0),
        ("prompt_logprobs", -1),
        ("cache_salt", ""),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(field, value):
    with pytest.raises(RequestRejected, match=f"^{field} must") as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"), [("logprob_token_ids", [1]), ("logprobs_mode", "processed")]
)
def test_a_field_about_logprobs_needs_logprobs(field, value):
    with pytest.raises(RequestRejected, match="only allowed together with logprobs") as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("top_p", 1.5), ("top_k", -2), ("frequency_penalty", 3)],
)
def test_a_number_out_of_range_is_refused_at_once(field, value):
    with pytest.raises(RequestRejected, match=rf"^{field} must be") as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        ("n", 1.5, "an integer"),
        ("n", None, "an integer"),
        ("max_tokens", "a", "an integer"),
        ("max_tokens", True, "an integer"),
        ("temperature", "hot", "a number"),
        ("presence_penalty", None, "a number"),
        ("stop", 5, "a text or a list of texts"),
        ("stop", [5], "a text or a list of texts"),
        ("stop_token_ids", "12", "a list of token ids"),
        ("allowed_token_ids", [1.0], "a list of token ids"),
        ("ignore_eos", "yes", "True or False"),
        ("logit_bias", {"5": 1.0}, "a mapping from token ids to numbers"),
        ("logit_bias", [5], "a mapping from token ids to numbers"),
        ("structured_outputs", "json", "a mapping"),
        ("bad_words", "a", "a list of texts"),
        ("logprobs_mode", "odd", "raw or processed"),
        ("deadline_ms", 0.5, "an integer"),
        ("cache_salt", 5, "a text"),
    ],
)
def test_a_value_of_another_type_names_its_field(name, value, what):
    with pytest.raises(RequestRejected) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value) == f"{name} must be {what}, not {value!r}"
    assert caught.value.field == name


def test_numbers_and_ids_may_come_out_of_arrays():
    ids = np.array([3, 4])
    params = SamplingParams(max_tokens=ids[0], temperature=np.float32(0.5), stop_token_ids=ids)
    lowered = _lower(params)
    assert (lowered.stop.max_tokens, lowered.sampling.temperature) == (3, 0.5)
    assert lowered.stop.stop_token_ids == (3, 4)
