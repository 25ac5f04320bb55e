"""The report of `openinfer doctor`: each op's back end on a device, and why not another one."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from openinfer_contract import PluginError
from openinfer_kernels.dispatch._choice import Regime, choose, regimes_of, why_not
from openinfer_kernels.dispatch._ops import find_op, op_names
from openinfer_kernels.errors import BackendUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class OpReport:
    """The back ends of one op on one device.

    Attributes:
        op: Name of the op, followed by the name of the example if the op has several: "linear int8"
            is `linear` with 8-bit weights.
        backend: The back end that "auto" chooses; None if none can run.
        available: Every back end that can be asked for by name, the chosen one included.
        unavailable: Back ends that cannot run here, and why.
        regimes: Kernels of the chosen back end by number of rows, if it has several.
    """

    op: str
    backend: str | None
    available: tuple[str, ...]
    unavailable: dict[str, str]
    regimes: tuple[Regime, ...] = ()


def describe(
    device: torch.device | str, specs: Mapping[str, Any] | None = None
) -> tuple[OpReport, ...]:
    """Reports every installed op on a device.

    Args:
        device: The device.
        specs: Op name to spec; the other ops are described with their examples, which are those of
            Qwen3-4B in bf16.

    Returns:
        One report for each op and example, the ops of this package first.
    """
    device = torch.device(device)
    reports = []
    for name in op_names():
        try:
            examples = find_op(name).examples
        except PluginError as error:
            reason = {"entry point": str(error)}
            reports.append(OpReport(op=name, backend=None, available=(), unavailable=reason))
            continue
        if specs and name in specs:
            examples = {"": specs[name]}
        for example, spec in examples.items():
            reports.append(_describe_op(f"{name} {example}".rstrip(), name, spec, device))
    return tuple(reports)


def _describe_op(title: str, op: str, spec: Any, device: torch.device) -> OpReport:
    found = find_op(op)
    reasons = {backend: why_not(op, spec, device, backend) for backend in found.backends}
    chosen: str | None = None
    regimes: tuple[Regime, ...] = ()
    with suppress(BackendUnavailable):
        chosen = choose(op, spec, device).backend
        regimes = regimes_of(found.load(chosen), spec, device)
    return OpReport(
        op=title,
        backend=chosen,
        available=tuple(backend for backend, reason in reasons.items() if reason is None),
        unavailable={backend: reason for backend, reason in reasons.items() if reason is not None},
        regimes=regimes,
    )
