"""The engine loop, its process and its socket, over any Executor.

Three ways to an `EngineHandle`: `InProcessEngine` (a step thread here), `EngineSupervisor` (a
child process, restarted when it dies) and `RemoteEngine` (a process that somebody else runs).
"""

from openinfer_engine._assembly import assemble, build_engine_info, check_options
from openinfer_engine._child import EngineChild
from openinfer_engine._engine_flags import ENGINE_FLAGS
from openinfer_engine._executor import (
    CompilingExecutor,
    Executor,
    ExecutorInfo,
    GrammarMasks,
    TracedExecutor,
)
from openinfer_engine._flag import Flag, FlagFormatter, add_flags
from openinfer_engine._heavy_imports import heavy_imports
from openinfer_engine._in_process import InProcessEngine
from openinfer_engine._launch import LINE_FACTORY, ExecutorFactory, ProcessSpec
from openinfer_engine._lines import LINES, detect_line, installed_lines, launch_line
from openinfer_engine._loop import EngineLoop
from openinfer_engine._machine import host_memory_bytes, physical_cores
from openinfer_engine._model_line import (
    Claim,
    EngineOptions,
    LaunchSpec,
    ModelLine,
    Refusal,
    ServePlan,
    read_config,
)
from openinfer_engine._remote import RemoteEngine
from openinfer_engine._supervisor import EngineState, EngineSupervisor, SupervisorOptions
from openinfer_engine._tracer import Tracer
from openinfer_engine.errors import (
    AddressRejected,
    CheckpointNotFound,
    EngineError,
    EngineStartError,
    ExecutorDead,
    ModelLineConflict,
    NoModelLine,
    OptionRejected,
    StepFailed,
    TraceFailed,
)

__all__ = [
    # the seam to the devices
    "Executor",
    "ExecutorInfo",
    "GrammarMasks",
    "ExecutorFactory",
    "CompilingExecutor",
    "TracedExecutor",
    "Tracer",
    # model lines
    "ModelLine",
    "LaunchSpec",
    "EngineOptions",
    "ServePlan",
    "Claim",
    "Refusal",
    "read_config",
    "detect_line",
    "installed_lines",
    "launch_line",
    "LINES",
    "heavy_imports",
    # its options on a command line
    "ENGINE_FLAGS",
    "Flag",
    "FlagFormatter",
    "add_flags",
    # engines
    "InProcessEngine",
    "EngineSupervisor",
    "SupervisorOptions",
    "EngineState",
    "RemoteEngine",
    "EngineChild",
    "ProcessSpec",
    "LINE_FACTORY",
    # the loop itself
    "EngineLoop",
    "assemble",
    "check_options",
    "build_engine_info",
    # errors
    "EngineError",
    "StepFailed",
    "ExecutorDead",
    "CheckpointNotFound",
    "NoModelLine",
    "ModelLineConflict",
    "OptionRejected",
    "AddressRejected",
    "TraceFailed",
    "EngineStartError",
    # what this process may really use
    "physical_cores",
    "host_memory_bytes",
]
