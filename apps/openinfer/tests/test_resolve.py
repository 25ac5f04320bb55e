import json
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import (
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)

from openinfer import ModelNotFound, UsageError
from openinfer.launch._resolve import CHECKPOINTS, ResolvedModel, resolve_model
from openinfer_tiny import CHECKPOINT


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Fake hub. `cached` and `online` are folders or errors; `calls` are the lookups."""
    monkeypatch.delenv("HF_HUB_OFFLINE")
    missing = LocalEntryNotFoundError("not here")
    hub = SimpleNamespace(cached=missing, online=missing, calls=[])

    def snapshot_download(name, **options):
        hub.calls.append((name, options))
        answer = hub.cached if options["local_files_only"] else hub.online
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return hub


def _write(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("{}")
    return folder


def test_the_default_is_the_built_in_model():
    tiny = ResolvedModel(Path(CHECKPOINT.path()), "tiny")
    assert resolve_model(None) == resolve_model("tiny") == tiny
    assert CHECKPOINTS.load("tiny") == tiny.path


@pytest.mark.parametrize("option", ["revision", "download_dir"])
def test_options_of_the_hub_are_refused_for_what_is_here(option, tmp_path):
    for name in (None, "tiny", _write(tmp_path, "config.json")):
        with pytest.raises(UsageError, match=rf"{option} .*does not come from the hub"):
            resolve_model(name, **{option: "main"})


def test_a_folder_is_served_under_its_name(tmp_path, monkeypatch):
    folder = _write(tmp_path / "my-model", "config.json")
    monkeypatch.chdir(tmp_path)
    for spelling in (str(folder), folder, "my-model", "./my-model/"):
        assert resolve_model(spelling) == ResolvedModel(folder, "my-model")


def test_a_folder_wins_over_an_installed_name(tmp_path, monkeypatch):
    folder = _write(tmp_path / "tiny", "config.json")
    monkeypatch.chdir(tmp_path)
    assert resolve_model("tiny").path == folder


def test_the_home_folder_is_understood(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = _write(tmp_path / "m", "config.json")
    assert resolve_model("~/m").path == folder


def test_a_folder_without_config_says_so(tmp_path):
    with pytest.raises(ModelNotFound, match=r"no config\.json") as caught:
        resolve_model(str(tmp_path))
    assert caught.value.name == str(tmp_path)


@pytest.mark.parametrize("name", ["nothing", "a/b/c", "./a", "/a/b", "~/b", "../b", "a/", "/b"])
def test_what_is_nothing_names_what_is_installed(hub, name):
    with pytest.raises(ModelNotFound, match="tiny"):
        resolve_model(name)
    assert hub.calls == []


def test_a_gguf_file_is_refused_as_such(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ModelNotFound, match="GGUF"):
        resolve_model(str(file))


def test_a_cached_checkpoint_is_used_without_asking_the_hub(hub, tmp_path):
    hub.cached = _write(tmp_path, "config.json", "model.safetensors")
    resolved = resolve_model("some/model", revision="main", download_dir="elsewhere")
    assert resolved == ResolvedModel(tmp_path, "some/model")
    ((name, options),) = hub.calls
    assert name == "some/model"
    assert options["revision"] == "main"
    assert options["cache_dir"] == "elsewhere"
    assert options["local_files_only"]
    assert "*.safetensors" in options["allow_patterns"]
    assert not any(pattern.endswith((".bin", ".pt")) for pattern in options["allow_patterns"])


def test_what_is_not_cached_is_downloaded(hub, tmp_path):
    hub.online = _write(tmp_path, "config.json", "model.safetensors")
    assert resolve_model("some/model").path == tmp_path
    assert [options["local_files_only"] for _, options in hub.calls] == [True, False]


@pytest.mark.parametrize(
    ("files", "index", "is_complete"),
    [
        (("config.json", "model.safetensors"), None, True),
        (("config.json",), None, False),
        (("model.safetensors",), None, False),
        (("config.json", "a.safetensors", "b.safetensors"), {"weight_map": "ab"}, True),
        (("config.json", "a.safetensors"), {"weight_map": "ab"}, False),
        (("config.json", "a.safetensors"), {"weight_map": None}, False),
        (("config.json", "a.safetensors"), [], False),
    ],
)
def test_half_a_download_is_continued(hub, tmp_path, files, index, is_complete):
    cached = hub.cached = _write(tmp_path / "cached", *files)
    online = hub.online = _write(tmp_path / "online")
    if index is not None:
        if isinstance(index, dict) and index["weight_map"]:
            index = {"weight_map": {f"w.{x}": f"{x}.safetensors" for x in index["weight_map"]}}
        (cached / "model.safetensors.index.json").write_text(json.dumps(index))
    assert resolve_model("some/model").path == (cached if is_complete else online)


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
def test_offline_forbids_the_download(hub, monkeypatch, value):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    with pytest.raises(ModelNotFound, match="HF_HUB_OFFLINE"):
        resolve_model("some/model")
    assert len(hub.calls) == 1


def test_the_hubs_answer_is_passed_on(hub):
    error = RepositoryNotFoundError.__new__(RepositoryNotFoundError)
    error.response = SimpleNamespace(status_code=404)
    hub.online = error
    with pytest.raises(ModelNotFound, match=r"answered 404.*HF_TOKEN"):
        resolve_model("some/model")


@pytest.mark.parametrize(
    "error", [LocalEntryNotFoundError("no net"), OSError("no net"), HFValidationError("odd id")]
)
def test_a_hub_out_of_reach_is_a_sentence(hub, error):
    hub.online = error
    with pytest.raises(ModelNotFound, match="cannot be reached"):
        resolve_model("some/model")


@pytest.mark.parametrize(
    "name", ["", "x" * 300, "a/" + "x" * 300 + "/b", "~no-such-user-here/model", "nul\0"]
)
def test_what_can_be_no_folder_is_not_found(name):
    with pytest.raises(ModelNotFound):
        resolve_model(name)
