"""Finds the folder of a model on this machine, or downloads it."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

from openinfer.errors import ModelNotFound, UsageError
from openinfer_contract import PluginGroup

DEFAULT_MODEL = "tiny"
_CHECKPOINT_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A checkpoint folder and its default model name in the API."""

    path: Path
    name: str


CHECKPOINTS: PluginGroup[Path] = PluginGroup(
    "openinfer.checkpoints", "checkpoint", lambda loaded: Path(loaded.path())
)
"""Checkpoints of installed packages, by name."""


def resolve_model(
    name: str | os.PathLike[str] | None,
    *,
    revision: str | None = None,
    download_dir: str | None = None,
) -> ResolvedModel:
    """Finds a model: folder, installed checkpoint, hub cache, hub (unless HF_HUB_OFFLINE is set).

    Args:
        name: a path, an installed name or a hub id; None for the built-in model.
        revision: branch, tag or commit on the hub.
        download_dir: hub cache to look in and download to.

    Raises:
        ModelNotFound: the message lists what was tried.
        PluginError: the installed checkpoint of that name does not load.
        UsageError: an option of the hub is given, and the model does not come from the hub.
    """
    name = DEFAULT_MODEL if name is None else os.fspath(name)
    if not name:
        raise ModelNotFound(name, "the name is empty; leave it out for the built-in model")
    local = _local_model(name)
    if local is None:
        return ResolvedModel(_from_hub(name, revision, download_dir), name)
    for option, value in (("revision", revision), ("download_dir", download_dir)):
        if value is not None:
            flag = "--" + option.replace("_", "-")
            message = f"{option} ({flag}): {name} does not come from the hub; leave it out"
            raise UsageError(message)
    return local


def _local_model(name: str) -> ResolvedModel | None:
    """Returns a folder or an installed checkpoint; None if the name can only be a hub id."""
    # os.path returns False where pathlib would raise: unknown user, no access, name too long.
    folder = os.path.expanduser(name)
    if os.path.isdir(folder):
        if not os.path.isfile(os.path.join(folder, "config.json")):
            raise ModelNotFound(name, "the folder has no config.json that can be read")
        path = Path(folder).resolve()
        return ResolvedModel(path, path.name)
    if name in CHECKPOINTS.names():
        return ResolvedModel(CHECKPOINTS.load(name), name)
    if name.lower().endswith(".gguf"):
        reason = "GGUF files are not read; give a folder with a safetensors checkpoint"
        raise ModelNotFound(name, reason)
    if _looks_like_hub_id(name):
        return None
    installed = ", ".join(CHECKPOINTS.names()) or "none"
    raise ModelNotFound(
        name,
        f"neither a folder nor an installed checkpoint (installed: {installed}); give one of "
        "these, or an id of the hub, which is OWNER/NAME",
    )


def _looks_like_hub_id(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 2 and all(parts) and not name.startswith((".", "/", "~"))


def _from_hub(name: str, revision: str | None, download_dir: str | None) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    def snapshot(*, is_local: bool) -> Path:
        return Path(
            snapshot_download(
                name,
                revision=revision,
                cache_dir=download_dir,
                allow_patterns=_CHECKPOINT_FILES,
                local_files_only=is_local,
            )
        )

    try:
        cached = snapshot(is_local=True)
        if _is_complete(cached):
            return cached
    except (LocalEntryNotFoundError, HFValidationError, OSError):
        pass
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in {"1", "true", "yes", "on"}:
        raise ModelNotFound(name, "not in the hub cache, and HF_HUB_OFFLINE forbids downloading")
    try:
        return snapshot(is_local=False)
    except HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "no")
        raise ModelNotFound(
            name, f"the hub answered {status}; check the id, and HF_TOKEN if access is restricted"
        ) from error
    except (HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelNotFound(
            name, "not in the hub cache, and the hub cannot be reached; give a folder instead"
        ) from error


def _is_complete(folder: Path) -> bool:
    """Returns whether an earlier download was completed: every file of the weights exists."""
    if not (folder / "config.json").is_file():
        return False
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return all((folder / name).is_file() for name in names)
