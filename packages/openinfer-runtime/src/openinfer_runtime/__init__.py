"""The Executor on real devices: rows, memory plan, forward pass and sampling.

`launch_torch` is what a model line's `launch` calls; `TorchExecutor` is what it returns.
"""

from openinfer_runtime._executor import TorchExecutor
from openinfer_runtime._model import BuildOptions, TorchModel
from openinfer_runtime.errors import (
    DeviceError,
    DeviceUnavailable,
    InsufficientMemory,
    ModelRejected,
)
from openinfer_runtime.startup._executor_info import fingerprint
from openinfer_runtime.startup._kernels_ahead import compile_ahead
from openinfer_runtime.startup._launch import launch_torch
from openinfer_runtime.startup._memory_plan import MemoryPlan, plan_memory
from openinfer_runtime.startup._threads import useful_threads

__all__ = [
    # Launching
    "launch_torch",
    "compile_ahead",
    "BuildOptions",
    "TorchModel",
    "fingerprint",
    # Running
    "TorchExecutor",
    # Memory and threads
    "MemoryPlan",
    "plan_memory",
    "useful_threads",
    # Errors
    "DeviceError",
    "DeviceUnavailable",
    "InsufficientMemory",
    "ModelRejected",
]
