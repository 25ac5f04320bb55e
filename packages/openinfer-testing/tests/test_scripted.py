import json

import pytest

from openinfer_engine import (
    Claim,
    EngineOptions,
    LaunchSpec,
    OptionRejected,
    Refusal,
    installed_lines,
)
from openinfer_testing import SCRIPTED_LINE, install_scripted_line, write_scripted_checkpoint

ANSWERS = ["aaa aaa aaa", "aaa, aaa", "aaaaa", "äöü"]


def test_every_piece_is_a_token_of_its_own_in_order(tmp_path):
    folder = write_scripted_checkpoint(tmp_path / "model", ANSWERS)
    added = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    assert [token["id"] for token in added] == list(range(256, 256 + len(added)))
    contents = [token["content"] for token in added]
    assert len(set(contents)) == len(contents)
    text = "".join(contents[1:])
    assert text == "".join(f"<|answer {n}|>{a}<|end {n}|>" for n, a in enumerate(ANSWERS))


def test_an_output_without_a_token_of_its_own_is_named(tmp_path):
    with pytest.raises(ValueError, match="'aaa'"):
        write_scripted_checkpoint(tmp_path / "model", ["aaa", "aaa"])


def test_the_line_claims_its_own_and_plans_without_a_gpu(tmp_path):
    folder = write_scripted_checkpoint(tmp_path / "model", ANSWERS)
    config = json.loads((folder / "config.json").read_text())
    assert isinstance(SCRIPTED_LINE.probe(config), Claim)
    assert isinstance(SCRIPTED_LINE.probe({"architectures": ["Qwen3ForCausalLM"]}), Refusal)
    spec = LaunchSpec(model_path=str(folder), model_line="scripted")
    assert SCRIPTED_LINE.plan(spec).vocab_size == config["vocab_size"]
    on_gpu = LaunchSpec(
        model_path=str(folder), model_line="scripted", engine=EngineOptions(device="cuda")
    )
    with pytest.raises(OptionRejected, match="GPU"):
        SCRIPTED_LINE.plan(on_gpu)


def test_it_is_installed_where_its_folder_is_on_the_path(tmp_path, monkeypatch):
    assert "scripted" not in installed_lines()
    monkeypatch.syspath_prepend(install_scripted_line(tmp_path / "site"))
    assert installed_lines()["scripted"] is SCRIPTED_LINE
