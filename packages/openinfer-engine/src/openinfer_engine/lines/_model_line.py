"""How a model package plugs in: one `ModelLine` under the entry point group `openinfer.models`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct

from openinfer_engine._executor import Executor
from openinfer_engine.errors import CheckpointNotFound
from openinfer_engine.flags._engine_options import EngineOptions


class LaunchSpec(Struct, frozen=True, kw_only=True):
    """Everything that an engine process needs to know. It travels between processes as msgpack."""

    model_path: str
    """Path of a local checkpoint folder."""
    model_line: str
    """Name of the installed line that serves the checkpoint. Engines without one use any name."""
    engine: EngineOptions = EngineOptions()
    line_options: dict[str, Any] = {}
    """Values of the line's own options, by field name."""


class Claim(Struct, frozen=True):
    """A line's statement that it serves a checkpoint."""

    architecture: str
    rank: Literal["exact", "fallback"] = "exact"
    """A fallback line serves a checkpoint only if no exact line claims it."""


class Refusal(Struct, frozen=True):
    """A line's statement that it does not serve a checkpoint."""

    reason: str
    """Why not, with the name of the field in config.json."""


class ServePlan(Struct, frozen=True, kw_only=True):
    """Device, dtype, limits and EOS ids of an engine, decided before weights are loaded."""

    device: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


class ModelLine(Protocol):
    """One family of models. `probe` and `plan` take milliseconds and do not import torch."""

    name: str
    options: type[Struct]
    """The options of this line: a frozen struct with a default for every field."""

    def probe(self, config: Mapping[str, Any], /) -> Claim | Refusal:
        """Returns whether the line serves the checkpoint of this config.json."""

    def plan(self, spec: LaunchSpec, /) -> ServePlan:
        """Decides everything that follows from the options and the checkpoint's config files.

        Raises:
            OptionRejected: the line, or this model, does not support an option's value.
        """

    def launch(self, spec: LaunchSpec, /) -> Executor:
        """Loads the weights and returns the executor, ready to step.

        Raises:
            OpenInferError: the checkpoint cannot be launched. The message says what to do.
        """


def read_config(model_path: str | Path) -> dict[str, Any]:
    """Returns the content of a checkpoint folder's config.json.

    Raises:
        CheckpointNotFound: the folder or the file is missing or unreadable.
    """
    path = Path(model_path) / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointNotFound(str(model_path), error.strerror or "unreadable") from error
    except ValueError as error:
        raise CheckpointNotFound(str(model_path), f"config.json is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CheckpointNotFound(str(model_path), "config.json is not a JSON object")
    return config
