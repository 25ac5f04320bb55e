"""Finding the one installed model line that serves a checkpoint."""

from collections.abc import Iterable, Mapping
from typing import Any

from openinfer_contract import PluginGroup
from openinfer_engine._executor import Executor
from openinfer_engine.errors import ModelLineConflict, NoModelLine
from openinfer_engine.lines._model_line import Claim, LaunchSpec, ModelLine, Refusal


def _line(loaded: Any) -> ModelLine:
    line: ModelLine = loaded() if isinstance(loaded, type) else loaded
    if not callable(getattr(line, "probe", None)):
        raise TypeError("it is not a model line: it has no probe")
    return line


LINES: PluginGroup[ModelLine] = PluginGroup("openinfer.models", "model line", _line)


def installed_lines() -> dict[str, ModelLine]:
    """The model lines of the entry point group `openinfer.models`, by name. Imports no torch.

    A line that does not load is left out, with a warning in the log.
    """
    return LINES.load_all()


def detect_line(
    config: Mapping[str, Any],
    lines: Mapping[str, ModelLine] | None = None,
    name: str | None = None,
) -> ModelLine:
    """Returns the line that serves a checkpoint.

    Args:
        config: The checkpoint's config.json.
        lines: Lines by name; the installed ones if not given.
        name: The line asked for (`--model-line`). It must claim the checkpoint too.

    Raises:
        NoModelLine: No line claims it; carries every line's reason.
        ModelLineConflict: Several lines of the same rank claim it and none was named.
        PluginError: The line asked for does not load.
    """
    architecture = _architecture(config)
    if lines is None:
        lines = installed_lines() if name is None else {name: _named_line(name, architecture)}
    elif name is not None and name not in lines:
        raise _not_installed(name, lines, architecture)
    refusals: dict[str, str] = {}
    claims: dict[str, Claim] = {}
    for candidate in sorted(lines) if name is None else [name]:
        answer = lines[candidate].probe(config)
        if isinstance(answer, Refusal):
            refusals[candidate] = answer.reason
        else:
            claims[candidate] = answer
    if not claims:
        raise NoModelLine(architecture, refusals)
    exact = [line for line, claim in claims.items() if claim.rank == "exact"]
    best = exact or list(claims)
    if len(best) > 1:
        raise ModelLineConflict(tuple(best))
    return lines[best[0]]


def launch_line(spec: LaunchSpec) -> Executor:
    """Launches the installed line that `spec` names: the default factory of an engine process.

    Raises:
        NoModelLine: that line is not installed.
        PluginError: it does not load.
        OpenInferError: the line cannot launch the checkpoint.
    """
    return _named_line(spec.model_line, spec.model_path).launch(spec)


def _named_line(name: str, served: str) -> ModelLine:
    try:
        return LINES.load(name)
    except KeyError:
        raise _not_installed(name, LINES.names(), served) from None


def _not_installed(name: str, installed: Iterable[str], served: str) -> NoModelLine:
    known = ", ".join(sorted(installed)) or "none"
    return NoModelLine(served, {name: f"not installed; installed are: {known}"})


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names:
        return ", ".join(str(name) for name in names)
    return str(config.get("model_type", "a checkpoint without model_type"))
