import math

import pytest

from openinfer_contract import FEATURES, EngineInfo, Limits, Sampling, pack_ids
from openinfer_text import CheckpointTextError, GenerationDefaults

EVERYTHING = GenerationDefaults(
    temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.1, max_new_tokens=7
)


def _info(honoured=FEATURES):
    return EngineInfo(
        engine="none",
        model_line="none",
        model_fingerprint="0",
        dtype="float32",
        vocab_size=300,
        eos_token_ids=(),
        limits=Limits(
            max_model_len=64,
            max_num_seqs=1,
            max_num_batched_tokens=64,
            max_queued_requests=1,
            max_queued_tokens=64,
            max_logprobs=0,
        ),
        cache_groups=(),
        hash_recipe="none",
        honoured=frozenset(honoured),
        commands=frozenset(),
    )


def test_absent_values_are_neutral():
    assert GenerationDefaults().sampling() == Sampling()


def test_defaults_fill_gaps_and_requested_values_win():
    assert EVERYTHING.sampling() == Sampling(
        temperature=0.6, top_k=20, top_p=0.95, min_p=0.1, repetition_penalty=1.1
    )
    asked = EVERYTHING.sampling(
        temperature=0.0, top_k=3, top_p=1.0, min_p=0.0, repetition_penalty=1.0
    )
    assert asked == Sampling(temperature=0.0, top_k=3)


@pytest.mark.parametrize("off", [0, -1])
def test_top_k_is_switched_off_by_either_spelling(off):
    assert EVERYTHING.sampling(top_k=off).top_k is None
    assert GenerationDefaults(top_k=off).sampling().top_k is None


def test_other_fields_pass_and_seeds_count_up():
    sampling = GenerationDefaults().sampling(
        seed=2**64 - 1,
        sample=1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias={7: 1.5},
        allowed_token_ids=[3, 7],
        bad_words=(pack_ids([1]),),
    )
    assert sampling == Sampling(
        seed=0,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        logit_bias=((7, 1.5),),
        allowed_token_ids=pack_ids([3, 7]),
        bad_words=(pack_ids([1]),),
    )


def test_an_engine_that_honours_all_keeps_all():
    assert EVERYTHING.honoured_by(_info()) == (EVERYTHING, {})


def test_defaults_that_an_engine_refuses_are_dropped_by_name():
    defaults = GenerationDefaults(
        temperature=-1.0, top_k=-7, top_p=0.9, repetition_penalty=1.1, max_new_tokens=0
    )
    kept, dropped = defaults.honoured_by(_info(honoured=()))
    assert kept == GenerationDefaults(top_p=0.9)
    assert dropped == {
        "temperature": -1.0, "top_k": -7, "repetition_penalty": 1.1, "max_new_tokens": 0,
    }  # fmt: skip


def test_a_neutral_penalty_needs_no_engine_that_honours_penalties():
    neutral = GenerationDefaults(repetition_penalty=1.0, top_k=0)
    assert neutral.honoured_by(_info(honoured=())) == (neutral, {})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("temperature", value) for value in ("x", True, [1], math.nan, math.inf, 10**400)),
        *(("top_k", value) for value in ("x", True, 1.5, math.nan, math.inf)),
    ],
)
def test_a_default_that_is_no_number_is_named(field, value):
    with pytest.raises(CheckpointTextError) as caught:
        GenerationDefaults.from_config({field: value})
    assert (caught.value.file, caught.value.field) == ("generation_config.json", field)
    assert len(str(caught.value)) < 200
