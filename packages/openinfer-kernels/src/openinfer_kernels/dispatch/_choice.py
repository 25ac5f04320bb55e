"""The choice of an op's back end: made once, when a model is built, never in a step."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch

from openinfer_kernels import native
from openinfer_kernels.dispatch._ops import find_op
from openinfer_kernels.errors import BackendUnavailable

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """One of the kernels among which a back end chooses by the number of rows.

    Attributes:
        rows: Rows for which the back end takes the kernel, for example "2 to 16 rows".
        kernel: Name of the kernel: of its file, without the underscore.
        why_not: Reason why the kernel does not run here, so that another one takes its rows; None
            if it runs.
    """

    rows: str
    kernel: str
    why_not: str | None = None

    def __str__(self) -> str:
        reason = f" (not here: {self.why_not})" if self.why_not else ""
        return f"{self.rows}: {self.kernel}{reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The back end that "auto" takes for one op on one device.

    Attributes:
        op: Name of the op.
        backend: The chosen back end.
        passed_over: Back ends preferred to the chosen one, and why each cannot run.
    """

    op: str
    backend: str
    passed_over: dict[str, str]


def why_not(op: str, spec: Any, device: torch.device, backend: str) -> str | None:
    """Returns None if `backend` can run `op`, else the reason why it cannot."""
    try:
        module = find_op(op).load(backend)
    except BackendUnavailable as error:
        return error.reason
    supports: Callable[..., str | None] | None = getattr(module, "supports", None)
    return None if supports is None else supports(spec, device)


def choose(op: str, spec: Any, device: torch.device) -> Choice:
    """Walks the op's order for this device and takes the first back end that can run the spec.

    The meta device has the order of "cuda": what runs there stands for what a GPU would run.

    Raises:
        BackendUnavailable: No back end of the op can.
    """
    passed_over: dict[str, str] = {}
    for backend in find_op(op).order_on(device.type):
        reason = why_not(op, spec, device, backend)
        if reason is None:
            return Choice(op=op, backend=backend, passed_over=passed_over)
        passed_over[backend] = reason
    raise BackendUnavailable(op, "auto", "; ".join(f"{b}: {r}" for b, r in passed_over.items()))


def backend_module(op: str, spec: Any, device: torch.device | str, backend: str) -> ModuleType:
    """Returns the module that runs `op`: the back end named, or what "auto" chooses.

    A choice of "auto" is logged when it is made for the first time, with its kernels by number of
    rows and with the reasons against the back ends that were passed over.

    Raises:
        ValueError: The op has no back end of that name.
        BackendUnavailable: The back end cannot run this spec on this device.
    """
    device = torch.device(device)
    found = find_op(op)
    if backend == "auto":
        choice = choose(op, spec, device)
        module = found.load(choice.backend)
        regimes = tuple(str(regime) for regime in regimes_of(module, spec, device))
        _announce(op, device.type, choice.backend, regimes, tuple(choice.passed_over.items()))
        return module
    if backend not in found.backends:
        known = ", ".join(sorted(found.backends))
        raise ValueError(f"{op} has no back end {backend!r}; it has {known}")
    reason = why_not(op, spec, device, backend)
    if reason is not None:
        raise BackendUnavailable(op, backend, reason)
    return found.load(backend)


def regimes_of(module: ModuleType, spec: Any, device: torch.device) -> tuple[Regime, ...]:
    """Returns a back end's kernels by number of rows; none if it has one kernel for all.

    On a machine without a GPU, kernels of a CUDA device are unknown and none are returned.
    """
    name_regimes = getattr(module, "regimes", None)
    is_absent = device.type == "cuda" and not torch.cuda.is_available()
    return () if name_regimes is None or is_absent else tuple(name_regimes(spec, device))


@cache
def _announce(
    op: str,
    device_type: str,
    backend: str,
    regimes: tuple[str, ...],
    passed_over: tuple[tuple[str, str], ...],
) -> None:
    """Logs a choice, once for all layers that choose alike."""
    notes = [*regimes, *(f"not {name}: {reason}" for name, reason in passed_over)]
    text = f" ({'; '.join(notes)})" if notes else ""
    _logger.info("%s on %s: %s%s", op, device_type, backend, text)
    reason = native.failure() if "native" in dict(passed_over) else None
    if reason is not None and dict(passed_over)["native"] == reason:
        _warn_of_slow_kernels(reason)


@cache
def _warn_of_slow_kernels(reason: str) -> None:
    _logger.warning("the fast kernels for this CPU cannot be used, inference is slow: %s", reason)


def is_of_part(part: str, op: str, backend: str) -> bool:
    """Whether `backend` is a back end of `part` but not of the op `op` that contains it."""
    return backend in find_op(part).backends and backend not in find_op(op).backends
