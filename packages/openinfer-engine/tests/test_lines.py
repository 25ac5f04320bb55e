from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import Struct

from openinfer_engine import (
    CheckpointNotFound,
    Claim,
    Executor,
    LaunchSpec,
    ModelLine,
    ModelLineConflict,
    NoModelLine,
    Refusal,
    ServePlan,
    detect_line,
    installed_lines,
    launch_line,
    read_config,
)


class Options(Struct, frozen=True):
    pass


class Line:
    options: type[Struct] = Options

    def __init__(self, name: str, architecture: str) -> None:
        self.name = name
        self._architecture = architecture

    def probe(self, config: Mapping[str, Any], /) -> Claim | Refusal:
        if self._architecture in config.get("architectures", ()):
            return Claim(self._architecture)
        return Refusal(f"serves {self._architecture} only")

    def plan(self, spec: LaunchSpec, /) -> ServePlan:
        raise NotImplementedError

    def launch(self, spec: LaunchSpec, /) -> Executor:
        raise NotImplementedError


LINES: dict[str, ModelLine] = {
    "one": Line("one", "One"), "two": Line("two", "Two"), "twin": Line("twin", "Two"),
}  # fmt: skip


def test_the_one_that_claims() -> None:
    assert detect_line({"architectures": ["One"]}, LINES).name == "one"


def test_none_claims_and_each_says_why() -> None:
    with pytest.raises(NoModelLine) as caught:
        detect_line({"architectures": ["Three"]}, LINES)
    assert caught.value.architecture == "Three"
    assert set(caught.value.refusals) == set(LINES)
    assert "one: serves One only" in str(caught.value)


def test_two_claim() -> None:
    with pytest.raises(ModelLineConflict, match="--model-line") as caught:
        detect_line({"architectures": ["Two"]}, LINES)
    assert caught.value.names == ("twin", "two")


def test_a_name_decides() -> None:
    assert detect_line({"architectures": ["Two"]}, LINES, "twin").name == "twin"


def test_a_named_line_must_claim_too() -> None:
    with pytest.raises(NoModelLine, match="one: serves One only"):
        detect_line({"architectures": ["Two"]}, LINES, "one")


def test_a_name_nobody_has() -> None:
    with pytest.raises(NoModelLine, match="installed are: one, twin, two"):
        detect_line({"architectures": ["Two"]}, LINES, "four")


def test_nothing_is_installed() -> None:
    with pytest.raises(NoModelLine, match="no model line is installed that could serve llama"):
        detect_line({"model_type": "llama"}, {})


def test_installed_lines_are_lines() -> None:
    for name, line in installed_lines().items():
        assert line.name == name


def test_launch_of_a_line_that_is_not_installed() -> None:
    with pytest.raises(NoModelLine, match="nobody: not installed"):
        launch_line(LaunchSpec(model_path="x", model_line="nobody"))


@pytest.mark.parametrize(
    ("text", "reason"), [(None, "No such file"), ("{", "not JSON"), ("[]", "not a JSON object")]
)
def test_a_config_that_cannot_be_read(text: str | None, reason: str, tmp_path: Any) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointNotFound, match=reason) as caught:
        read_config(tmp_path)
    assert caught.value.path == str(tmp_path)


def test_a_config(tmp_path: Any) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    assert read_config(tmp_path) == {"model_type": "x"}
