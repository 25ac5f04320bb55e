"""Preparation of a launch: resolves the model, finds its model line, checks the options."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openinfer._engines import ServedEngine, load_engine
from openinfer.errors import UsageError
from openinfer.launch._resolve import ResolvedModel, resolve_model
from openinfer.options._line_options import check_line_options, parse_line_options
from openinfer.options._option_structs import engine_options
from openinfer_engine import (
    LINE_FACTORY,
    LaunchSpec,
    ModelLine,
    ServePlan,
    check_options,
    detect_line,
    read_config,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A model that is ready to be launched; nothing is loaded yet."""

    model: ResolvedModel
    line: ModelLine | ServedEngine
    spec: LaunchSpec
    plan: ServePlan
    factory: str
    """`module:function` that makes the executor in the engine process."""


def prepare(
    model: str | os.PathLike[str] | None,
    values: Mapping[str, Any],
    *,
    line_values: Mapping[str, Any] | None = None,
    line_where: str = "",
    line_arguments: Sequence[str] = (),
) -> Prepared:
    """Resolves a model and turns options into a launch spec.

    Args:
        model: folder, installed name or hub id; None for the built-in model.
        values: values of flags by `Flag.dest`. Flags of other scopes are ignored.
        line_values: options of the model line by name.
        line_where: beginning of messages about `line_values`: their file, or empty for keyword
            arguments.
        line_arguments: command-line arguments with options of the model line.

    Raises:
        OpenInferError: the model or an option cannot be used. The message says what to do.
    """
    resolved = resolve_model(
        model, revision=values.get("revision"), download_dir=values.get("download_dir")
    )
    line, factory = _find_line(resolved, values)
    own = check_line_options(line_values or {}, line.options, line.name, line_where)
    own |= parse_line_options(line_arguments, line.options, line.name)
    engine = engine_options(values)
    check_options(engine)  # before starting a process that would fail
    spec = LaunchSpec(
        model_path=str(resolved.path),
        model_line=line.name,
        engine=engine,
        line_options=own,
    )
    return Prepared(model=resolved, line=line, spec=spec, plan=line.plan(spec), factory=factory)


def _find_line(
    resolved: ResolvedModel, values: Mapping[str, Any]
) -> tuple[ModelLine | ServedEngine, str]:
    """Returns the model line or engine that serves the model, and its executor factory."""
    if "engine" not in values:
        line = detect_line(read_config(resolved.path), name=values.get("model_line"))
        return line, LINE_FACTORY
    if "model_line" in values:
        raise UsageError("--model-line has no effect with --engine; leave one of them out")
    engine = load_engine(values["engine"])
    return engine, engine.factory
