import pytest

from openinfer import ModelNotFound, UsageError
from openinfer.launch._prepare import prepare
from openinfer.options._text_options import read_template
from openinfer_contract import OpenInferError
from openinfer_engine import EngineOptions


def test_the_built_in_model_is_prepared_without_loading_it():
    prepared = prepare(None, {"max_model_len": 512, "port": 1})
    assert prepared.model.name == "tiny"
    assert prepared.spec.model_line == prepared.line.name == "qwen3"
    assert prepared.spec.model_path == str(prepared.model.path)
    assert prepared.spec.engine == EngineOptions(max_model_len=512)
    assert prepared.spec.line_options == {}
    assert prepared.plan.max_model_len == 512


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"max_model_len": 10**7}, "max_model_len"),
        ({"block_size": 0}, "block_size"),
        ({"model_line": "nothing"}, "nothing"),
        ({"scheduling_policy": "nobody's"}, "nobody's"),
        ({"trace_dir": "/no/where"}, "/no/where"),
        ({"structured_outputs_backend": "xgrammar"}, r"grammar\[xgrammar\]"),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_a_process_starts(monkeypatch, values, words):
    monkeypatch.setattr("openinfer_grammar._installed_backends.find_spec", lambda name: None)
    with pytest.raises(OpenInferError, match=words):
        prepare(None, values)


def test_options_nobody_owns_are_refused_from_both_sides():
    with pytest.raises(UsageError, match=r"^num_experts is used by neither"):
        prepare(None, {}, line_values={"num_experts": 2})
    with pytest.raises(UsageError, match="--num-experts"):
        prepare(None, {}, line_arguments=("--num-experts", "2"))


def test_an_unknown_model_is_not_found():
    with pytest.raises(ModelNotFound):
        prepare("nothing", {})


def test_templates_are_read(tmp_path):
    file = tmp_path / "chat.jinja"
    file.write_text("{{ messages }} ü", encoding="utf-8")
    assert read_template(str(file)) == "{{ messages }} ü"
    assert read_template(None) is None
    file.write_bytes(b"\xff")
    for path in (file, tmp_path / "missing", tmp_path):
        with pytest.raises(UsageError, match="chat template"):
            read_template(str(path))
