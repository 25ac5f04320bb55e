"""Finding the one installed model line that serves a checkpoint."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from openinfer_engine._executor import Executor
from openinfer_engine._model_line import LaunchSpec, ModelLine, Refusal
from openinfer_engine.errors import EngineError, ModelLineConflict, NoModelLine

GROUP = "openinfer.models"


def installed_lines() -> dict[str, ModelLine]:
    """The model lines of the entry point group `openinfer.models`, by name. Imports no torch."""
    return {point.name: _load(point) for point in entry_points(group=GROUP)}


def detect_line(
    config: Mapping[str, Any],
    lines: Mapping[str, ModelLine] | None = None,
    name: str | None = None,
) -> ModelLine:
    """The line that serves a checkpoint.

    Args:
        config: the checkpoint's config.json.
        lines: by name; the installed ones if not given.
        name: the line asked for (`--model-line`). It must claim the checkpoint too.

    Raises:
        NoModelLine: none claims it; carries every line's reason.
        ModelLineConflict: several do and none was named.
    """
    lines = installed_lines() if lines is None else lines
    architecture = _architecture(config)
    if name is not None and name not in lines:
        known = ", ".join(sorted(lines)) or "none"
        raise NoModelLine(architecture, {name: f"not installed; installed are: {known}"})
    refusals: dict[str, str] = {}
    claims: list[str] = []
    for candidate in sorted(lines) if name is None else [name]:
        answer = lines[candidate].probe(config)
        if isinstance(answer, Refusal):
            refusals[candidate] = answer.reason
        else:
            claims.append(candidate)
    if not claims:
        raise NoModelLine(architecture, refusals)
    if len(claims) > 1:
        raise ModelLineConflict(tuple(claims))
    return lines[claims[0]]


def launch_line(spec: LaunchSpec) -> Executor:
    """The executor of the installed line that `spec` names: an engine's default factory.

    Raises:
        NoModelLine: that line is not installed.
        OpenInferError: whatever the line says.
    """
    lines = installed_lines()
    if spec.model_line not in lines:
        known = ", ".join(sorted(lines)) or "none"
        reason = f"not installed; installed are: {known}"
        raise NoModelLine(spec.model_path, {spec.model_line: reason})
    return lines[spec.model_line].launch(spec)


def _load(point: EntryPoint) -> ModelLine:
    try:
        line = point.load()
    except ImportError as error:
        raise EngineError(f"the model line {point.name} does not import: {error}") from error
    return cast(ModelLine, line() if isinstance(line, type) else line)


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names:
        return ", ".join(str(name) for name in names)
    return str(config.get("model_type", "a checkpoint without model_type"))
