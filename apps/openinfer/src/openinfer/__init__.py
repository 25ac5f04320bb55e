"""OpenInfer: an LLM inference engine made of packages.

`LLM` runs a model in this process; the `openinfer` command serves one over HTTP.
"""

from openinfer._batch import Completion
from openinfer._llm import LLM
from openinfer._sampling_params import SamplingParams
from openinfer.errors import (
    AppError,
    GenerationFailed,
    ModelNotFound,
    RemoteServerError,
    RequestRejected,
    UsageError,
)

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
