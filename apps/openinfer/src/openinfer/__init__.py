"""OpenInfer: an LLM inference engine made of packages.

`LLM` runs a model in this process; the `openinfer` command serves one over HTTP.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from openinfer.errors import (
        AppError,
        GenerationFailed,
        ModelNotFound,
        RemoteServerError,
        RequestRejected,
        UsageError,
    )
    from openinfer.llm._batch import Completion
    from openinfer.llm._llm import LLM
    from openinfer.llm._sampling_params import SamplingParams

__all__ = [
    "LLM",
    "SamplingParams",
    "Completion",
    # errors
    "AppError",
    "UsageError",
    "ModelNotFound",
    "RemoteServerError",
    "RequestRejected",
    "GenerationFailed",
]

# These names are imported at first use. So the command handles Ctrl-C before it imports anything,
# and `serve` starts the engine process before it imports the rest.
_HOMES = {
    "LLM": "llm._llm",
    "SamplingParams": "llm._sampling_params",
    "Completion": "llm._batch",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(f"{__name__}.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
