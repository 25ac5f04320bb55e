"""The options that choose a model and where it comes from."""

from typing import Annotated

from msgspec import Struct

from openinfer_engine import Option, flags_of


class ModelOptions(Struct, frozen=True, kw_only=True):
    """The model, and the places where it is looked up."""

    model: Annotated[
        str | None,
        Option("folder, installed name or hub id", names=("--model", "--model-path")),
    ] = None
    """None: the built-in model."""
    revision: Annotated[str | None, Option("branch, tag or commit on the hub")] = None
    download_dir: Annotated[str | None, Option("folder of the hub cache")] = None
    model_line: Annotated[
        str | None, Option("installed model line that serves the model; needed if several could")
    ] = None
    engine: Annotated[
        str | None, Option("installed engine that serves instead of a model line, such as sim")
    ] = None


MODEL_FLAGS = flags_of(ModelOptions, "model")
