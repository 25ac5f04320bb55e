"""The engine loop, its process and its socket, over any executor.

There are three implementations of `EngineHandle`: `InProcessEngine` runs the step thread in this
process, `EngineSupervisor` runs a child process and restarts it when it dies, and `RemoteEngine`
connects to an engine process.
"""

from openinfer_engine._assembly import assemble, build_engine_info, check_options
from openinfer_engine._executor import (
    Ability,
    CompilingExecutor,
    Executor,
    ExecutorInfo,
    GrammarMasks,
    TracedExecutor,
)
from openinfer_engine._in_process import InProcessEngine
from openinfer_engine._machine import host_memory_bytes, physical_cores
from openinfer_engine.errors import (
    AddressRejected,
    CheckpointNotFound,
    EngineError,
    EngineStartError,
    ExecutorDead,
    FlagRejected,
    ModelLineConflict,
    NoModelLine,
    OptionRejected,
    StepFailed,
    TraceFailed,
    UnsupportedPlans,
)
from openinfer_engine.flags._command_line import FlagFormatter, add_flags, flag_table
from openinfer_engine.flags._engine_options import ENGINE_FLAGS, EngineOptions
from openinfer_engine.flags._flag import Flag
from openinfer_engine.flags._mapping import read_flags
from openinfer_engine.flags._struct_flags import Option, flags_of
from openinfer_engine.lines._checkpoint_line import CheckpointLine
from openinfer_engine.lines._config_reader import ConfigReader, UnsupportedConfig
from openinfer_engine.lines._heavy_imports import heavy_imports
from openinfer_engine.lines._model_line import (
    Claim,
    LaunchSpec,
    ModelLine,
    Refusal,
    ServePlan,
    read_config,
)
from openinfer_engine.lines._registry import LINES, detect_line, installed_lines, launch_line
from openinfer_engine.lines._rope_config import RopeConfig, read_rope
from openinfer_engine.lines._serve_plan import ModelFacts, serve_plan
from openinfer_engine.loop._engine_loop import EngineLoop
from openinfer_engine.process._child_process import EngineChild
from openinfer_engine.process._remote_engine import RemoteEngine
from openinfer_engine.process._start_messages import LINE_FACTORY, ExecutorFactory, ProcessSpec
from openinfer_engine.process._supervisor import EngineState, EngineSupervisor, SupervisorOptions
from openinfer_engine.trace._tracer import Tracer

__all__ = [
    # the interface to the devices
    "Executor",
    "ExecutorInfo",
    "Ability",
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
    "CheckpointLine",
    "ConfigReader",
    "ModelFacts",
    "RopeConfig",
    "UnsupportedConfig",
    "read_rope",
    "serve_plan",
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
    "Option",
    "add_flags",
    "flag_table",
    "flags_of",
    "read_flags",
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
    "UnsupportedPlans",
    "FlagRejected",
    "AddressRejected",
    "TraceFailed",
    "EngineStartError",
    # cores and memory of this process
    "physical_cores",
    "host_memory_bytes",
]
