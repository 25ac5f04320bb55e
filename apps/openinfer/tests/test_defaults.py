import logging

import pytest

from openinfer import SamplingParams
from openinfer.launch._checkpoint_defaults import keep_honoured_defaults
from openinfer.options._http_options import HttpOptions
from openinfer.options._text_options import TextOptions
from openinfer.serve._front import FrontSpec
from openinfer_text import GenerationDefaults


def test_what_the_engine_cannot_honour_is_left_out_with_one_warning(
    tiny_with, counting_llm, caplog
):
    folder = tiny_with(repetition_penalty=1.05, top_p=0.9, temperature=-1)
    llm = counting_llm(options={"model": folder})
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "generation_config.json" in warning
    assert "repetition_penalty 1.05" in warning
    assert "temperature -1" in warning
    assert "top_p" not in warning
    assert llm.text.generation == GenerationDefaults(top_p=0.9)
    (answer,) = llm.generate([10], SamplingParams(max_tokens=2), has_progress_bar=False)
    assert len(answer.token_ids) == 2


def test_nothing_is_said_when_all_are_honoured(counting_llm, caplog):
    llm = counting_llm()
    before = llm.text.generation
    assert before.temperature is not None
    assert keep_honoured_defaults(llm.text, llm.engine.info) == before
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("defaults", [None, GenerationDefaults(top_p=0.9)])
def test_further_front_processes_are_told_what_is_left(tiny_with, defaults):
    spec = FrontSpec(
        model_path=str(tiny_with(repetition_penalty=1.05, top_p=0.9)),
        text=TextOptions(),
        http=HttpOptions(served_model_names=("tiny",)),
        version="0",
        defaults=defaults,
    )
    expected = defaults or GenerationDefaults(repetition_penalty=1.05, top_p=0.9)
    assert spec.load_text().generation == expected
