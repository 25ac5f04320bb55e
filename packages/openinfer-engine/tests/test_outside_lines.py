"""Model lines of packages outside this repository, found by entry point."""

from pathlib import Path

import pytest

from openinfer_engine import (
    LaunchSpec,
    ModelLineConflict,
    detect_line,
    installed_lines,
    launch_line,
)

_MODULE = """
from msgspec import Struct
from openinfer_engine import Claim, Refusal

class Options(Struct, frozen=True):
    pass

class Line:
    name = "{name}"
    options = Options
    def probe(self, config):
        served = config.get("architectures") == ["OutsideForCausalLM"]
        return Claim("OutsideForCausalLM", "{rank}") if served else Refusal("serves Outside only")
    def plan(self, spec):
        raise NotImplementedError
    def launch(self, spec):
        return "an executor for " + spec.model_path
"""
CONFIG = {"architectures": ["OutsideForCausalLM"]}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Puts a distribution with a model line on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, rank: str = "exact") -> None:
        module = f"outside_{name}_line"
        (tmp_path / f"{module}.py").write_text(_MODULE.format(name=name, rank=rank))
        info = tmp_path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[openinfer.models]\n{name} = {module}:Line\n")

    return install


def test_a_line_of_an_outside_package_is_found_and_launched(install) -> None:
    install("plain")
    assert "plain" in installed_lines()
    assert detect_line(CONFIG).name == "plain"
    executor = launch_line(LaunchSpec(model_path="folder", model_line="plain"))
    assert executor == "an executor for folder"


def test_a_fallback_serves_only_what_no_other_line_claims(install) -> None:
    install("anything", "fallback")
    assert detect_line(CONFIG).name == "anything"
    install("special")
    assert detect_line(CONFIG).name == "special"
    assert detect_line(CONFIG, name="anything").name == "anything"


@pytest.mark.parametrize("rank", ["exact", "fallback"])
def test_two_claims_of_one_rank_conflict(install, rank: str) -> None:
    install("one", rank)
    install("two", rank)
    with pytest.raises(ModelLineConflict, match="--model-line") as caught:
        detect_line(CONFIG)
    assert caught.value.names == ("one", "two")
