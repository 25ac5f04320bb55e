"""`openinfer doctor`: the machine, the installed parts, and the kernels in use with reasons."""

import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import distributions, version
from pathlib import Path
from types import ModuleType
from typing import Any

from openinfer._engines import ENGINES
from openinfer.commands._plugin_commands import COMMANDS
from openinfer.launch._resolve import CHECKPOINTS, DEFAULT_MODEL, resolve_model
from openinfer_contract import OpenInferError, PluginGroup
from openinfer_engine import LINES, Refusal, installed_lines, read_config
from openinfer_scheduler import POLICIES
from openinfer_text import PARSERS, installed_parsers

_GROUPS: tuple[tuple[str, PluginGroup[Any]], ...] = (
    ("model lines", LINES),
    ("checkpoints", CHECKPOINTS),
    ("scheduling policies", POLICIES),
    ("engines", ENGINES),
    ("commands", COMMANDS),
)


def doctor(model: str | None) -> int:
    """Prints the report; returns 1 if the model cannot be served."""
    _section("machine", _machine())
    _section("installed", _installed())
    is_served, lines = _model(model)
    _section(f"model {model or DEFAULT_MODEL}", lines)
    for device in _devices():
        _section(f"kernels on {device}", _kernels(device))
    return 0 if is_served else 1


def _section(title: str, lines: Iterable[str]) -> None:
    print(f"{title}\n" + "".join(f"  {line}\n" for line in lines))


def _machine() -> Iterable[str]:
    import torch

    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    yield f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    yield f"{os.cpu_count()} CPUs, {pages * page_bytes / 2**30:.1f} GiB of memory"
    yield f"torch {torch.__version__}, CUDA {torch.version.cuda or 'not built in'}"
    if not _has_bytecode(torch):
        yield (
            "torch has no bytecode on disk, so every start compiles it again, for seconds: unset "
            "PYTHONDONTWRITEBYTECODE, or once: "
            f"python -m compileall -q {Path(torch.__file__).parent}"
        )
    if not torch.cuda.is_available():
        yield "no usable CUDA device"
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        memory = device.total_memory / 2**30
        yield f"cuda:{index} {device.name}, sm_{device.major}{device.minor}, {memory:.0f} GiB"


def _has_bytecode(module: ModuleType) -> bool:
    """Returns whether the module's bytecode is on disk."""
    spec = module.__spec__
    return spec is not None and spec.cached is not None and Path(spec.cached).exists()


def _installed() -> Iterable[str]:
    names = {d.metadata["Name"] for d in distributions()}
    yield ", ".join(f"{n} {version(n)}" for n in sorted(names) if n.startswith("openinfer"))
    for title, group in _GROUPS:
        yield from _names(title, group.names(), group)
    yield from _names("tool parsers", installed_parsers("tool"), PARSERS["tool"])
    yield from _names("reasoning parsers", installed_parsers("reasoning"), PARSERS["reasoning"])


def _names(title: str, names: Sequence[str], group: PluginGroup[Any]) -> Iterable[str]:
    broken = group.broken()
    yield f"{title}: {', '.join(n for n in names if n not in broken) or 'none'}"
    for error in broken.values():
        yield f"  broken: {error}"


def _model(model: str | None) -> tuple[bool, list[str]]:
    if model is None and DEFAULT_MODEL not in CHECKPOINTS.names():
        return False, ["the built-in model is not installed: pip install openinfer-tiny"]
    try:
        resolved = resolve_model(model)
        config = read_config(resolved.path)
    except OpenInferError as error:
        return False, [str(error)]
    lines, num_claims = [], 0
    for name, line in installed_lines().items():
        answer = line.probe(config)
        if isinstance(answer, Refusal):
            lines.append(f"{name}: no, {answer.reason}")
        else:
            num_claims += 1
            lines.append(f"{name}: serves it ({answer.architecture})")
    if num_claims > 1:
        lines.append("choose one with --model-line")
    return num_claims > 0, lines or ["no model line is installed: pip install openinfer-qwen3"]


def _devices() -> list[str]:
    import torch

    return ["cuda", "cpu"] if torch.cuda.is_available() else ["cpu"]


def _kernels(device: str) -> Iterable[str]:
    from openinfer_kernels import describe

    for report in describe(device):
        others = [name for name in report.available if name != report.backend]
        why = [f"{name}: {reason}" for name, reason in report.unavailable.items()]
        beside = f"; also {', '.join(others)}" if others else ""
        without = f"; not {'; '.join(why)}" if why else ""
        yield f"{report.op:16} {report.backend or 'none'}{beside}{without}"
        yield from (f"{'':16}   {regime}" for regime in report.regimes)
