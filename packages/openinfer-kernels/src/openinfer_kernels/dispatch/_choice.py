"""Which backend runs an op: decided once, when a model is built, never in a step.

A back end of an op is the module `openinfer_kernels.ops.<op>._<backend>`. Its
`supports(spec, device)` returns None for yes or the reason why not, its `plan...(spec, device)`
functions return the bound callables. To add one, add a module and name it here.
"""

import functools
import importlib
import logging
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from openinfer_kernels import native
from openinfer_kernels.errors import BackendUnavailable

_logger = logging.getLogger(__name__)

# op -> device type -> backends, the preferred one first.
BACKEND_ORDER: dict[str, dict[str, tuple[str, ...]]] = {
    "rms_norm": {
        "cpu": ("native", "torch", "reference"),
        "cuda": ("triton", "torch", "reference"),
    },
    "rope": {
        "cpu": ("native", "torch", "reference"),
        "cuda": ("triton", "torch", "reference"),
    },
    "silu_and_mul": {
        "cpu": ("native", "torch", "reference"),
        "cuda": ("triton", "torch", "reference"),
    },
    "linear": {
        # No reference: it would take a quantized weight, seconds a product.
        "cpu": ("native", "cpu", "torch"),
        "cuda": ("torch", "reference"),
    },
    "fused_linear": {
        "cpu": ("native", "composed"),
        "cuda": ("triton", "composed", "reference"),
    },
    "store_kv": {
        "cpu": ("native", "torch", "reference"),
        "cuda": ("triton", "torch", "reference"),
    },
    "paged_attention": {
        "cpu": ("native", "cpu", "torch", "reference"),
        "cuda": ("triton", "torch", "reference"),
    },
    "fused_attention": {
        "cpu": ("native", "composed", "reference"),
        "cuda": ("triton", "composed", "reference"),
    },
    "advance_rows": {
        "cpu": ("torch", "reference"),
        "cuda": ("triton", "torch", "reference"),
    },
    "sample": {
        "cpu": ("cpu", "torch", "reference"),
        "cuda": ("triton", "torch", "reference"),
    },
    "score_tokens": {
        "cpu": ("torch", "reference"),
        "cuda": ("triton", "torch", "reference"),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What "auto" takes for one op on one device, and why the others were passed over.

    Attributes:
        op: Name of the op.
        backend: The chosen backend.
        passed_over: Backend name to reason, for those preferred to the chosen one.
    """

    op: str
    backend: str
    passed_over: dict[str, str]


def why_not(op: str, spec: Any, device: torch.device, backend: str) -> str | None:
    """Returns None if `backend` can run `op`, else the reason why it cannot."""
    try:
        module = _load(op, backend)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("openinfer_kernels"):
            raise
        return f"the package {error.name!r} is not installed"
    reason: str | None = module.supports(spec, device)
    return reason


def choose(op: str, spec: Any, device: torch.device) -> Choice:
    """Walks the op's order for this device and takes the first backend that can run it.

    Raises:
        BackendUnavailable: No backend of the op can.
    """
    # What runs on the meta device stands for what would run on a GPU.
    kind = "cuda" if device.type == "meta" else device.type
    order = BACKEND_ORDER[op].get(kind, ("torch", "reference"))
    passed_over: dict[str, str] = {}
    for backend in order:
        reason = why_not(op, spec, device, backend)
        if reason is None:
            return Choice(op=op, backend=backend, passed_over=passed_over)
        passed_over[backend] = reason
    raise BackendUnavailable(op, "auto", "; ".join(f"{b}: {r}" for b, r in passed_over.items()))


def backend_module(op: str, spec: Any, device: torch.device | str, backend: str) -> ModuleType:
    """Returns the module that runs `op`: the one named, or what "auto" chooses.

    A choice is logged, with what was passed over and why, when it is made for the first time.

    Raises:
        ValueError: The op has no backend of that name.
        BackendUnavailable: It cannot run this spec on this device.
    """
    device = torch.device(device)
    if backend == "auto":
        choice = choose(op, spec, device)
        _announce(op, device.type, choice.backend, tuple(choice.passed_over.items()))
        return _load(op, choice.backend)
    known = _backends(op)
    if backend not in known:
        raise ValueError(f"{op} has no backend {backend!r}; it has {', '.join(known)}")
    reason = why_not(op, spec, device, backend)
    if reason is not None:
        raise BackendUnavailable(op, backend, reason)
    return _load(op, backend)


@functools.cache
def _announce(
    op: str, device_type: str, backend: str, passed_over: tuple[tuple[str, str], ...]
) -> None:
    """Logs a choice; layers that choose alike are one line."""
    reasons = "; ".join(f"not {name}: {reason}" for name, reason in passed_over)
    _logger.info("%s on %s: %s%s", op, device_type, backend, f" ({reasons})" if reasons else "")
    reason = native.failure() if "native" in dict(passed_over) else None
    if reason is not None and dict(passed_over)["native"] == reason:
        _warn_of_slow_kernels(reason)


@functools.cache
def _warn_of_slow_kernels(reason: str) -> None:
    _logger.warning("the fast kernels for this CPU cannot be used, inference is slow: %s", reason)


def is_of_part(part: str, op: str, backend: str) -> bool:
    """Whether `backend` is one of the op `part` but none of `op`, which can be made of it."""
    return backend in _backends(part) and backend not in _backends(op)


def _backends(op: str) -> list[str]:
    return sorted({name for order in BACKEND_ORDER[op].values() for name in order})


def _load(op: str, backend: str) -> ModuleType:
    return importlib.import_module(f"openinfer_kernels.ops.{op}._{backend}")
