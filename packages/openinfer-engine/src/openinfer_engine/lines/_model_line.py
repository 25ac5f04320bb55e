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
    """Everything an engine process needs to know; crosses the process boundary as msgpack."""

    model_path: str
    """A local checkpoint folder."""
    model_line: str
    """Name of the installed line that serves it, or of the engine when there is no line."""
    engine: EngineOptions = EngineOptions()
    line_options: dict[str, Any] = {}
    """Values of the line's own options, by field name."""


class Claim(Struct, frozen=True):
    """The line serves this checkpoint exactly."""

    architecture: str
    rank: Literal["exact", "fallback"] = "exact"
    """A fallback serves the checkpoint only where no line of rank exact claims it."""


class Refusal(Struct, frozen=True):
    """The line does not serve this checkpoint, and why, by name of the field."""

    reason: str


class ServePlan(Struct, frozen=True, kw_only=True):
    """What can be known before anything is loaded."""

    device: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]


class ModelLine(Protocol):
    """One family of models. `probe` and `plan` cost milliseconds and import no torch."""

    name: str
    options: type[Struct]
    """A frozen struct with a default for every field: the options this line owns."""

    def probe(self, config: Mapping[str, Any], /) -> Claim | Refusal:
        """Looks at a checkpoint's config.json."""

    def plan(self, spec: LaunchSpec, /) -> ServePlan:
        """Decides what follows from the options alone.

        Raises:
            OptionRejected: an option is set that this line does not honour, or cannot with this
                model; nothing is silently dropped.
        """

    def launch(self, spec: LaunchSpec, /) -> Executor:
        """Loads the weights and returns the executor, ready to step.

        Raises:
            OpenInferError: with a sentence that says what to do.
        """


def read_config(model_path: str | Path) -> dict[str, Any]:
    """A checkpoint folder's config.json.

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
