"""The Executor on real devices: rows, memory plan, forward pass and sampling.

`launch_torch` is what a model line's `launch` calls; `TorchExecutor` is what it returns.
"""

from openinfer_runtime._executor import TorchExecutor
from openinfer_runtime._executor_info import fingerprint
from openinfer_runtime._kernels_ahead import compile_ahead
from openinfer_runtime._launch import launch_torch
from openinfer_runtime._memory import MemoryPlan, plan_memory
from openinfer_runtime._model import BuildOptions, TorchModel
from openinfer_runtime._threads import useful_threads
from openinfer_runtime.errors import (
    DeviceError,
    DeviceUnavailable,
    InsufficientMemory,
    ModelRejected,
)

__all__ = [
    # Launching
    "launch_torch",
    "compile_ahead",
    "BuildOptions",
    "TorchModel",
    "fingerprint",
    # Running
    "TorchExecutor",
    # The machine
    "MemoryPlan",
    "plan_memory",
    "useful_threads",
    # Errors
    "DeviceError",
    "DeviceUnavailable",
    "InsufficientMemory",
    "ModelRejected",
]
