"""Simulator: the real engine loop, scheduler and cache over a modelled device.

`simulate` scores a scheduling policy on a trace, on a virtual clock. `openinfer sim` and `python -m
openinfer_sim` do so from the command line. `openinfer serve --engine sim` runs the real front end
in real time without a device.
"""

from openinfer_sim._run import Run, simulate
from openinfer_sim._setup import Setup
from openinfer_sim.device._clock import VirtualClock
from openinfer_sim.device._cost_model import CostModel
from openinfer_sim.device._executor import ModelledExecutor
from openinfer_sim.device._figures import (
    DeviceFigures,
    ModelFigures,
    find_device,
    find_model,
    load_figures,
)
from openinfer_sim.errors import MissingExtra, SimError, TraceError, UnknownFigures
from openinfer_sim.plugins._command import add as add_command
from openinfer_sim.plugins._engine import ENGINE, launch
from openinfer_sim.replicas._replica import Replica
from openinfer_sim.replicas._routing import (
    ROUTERS,
    LeastLoadedRouter,
    PrefixAwareRouter,
    RandomRouter,
    Route,
    Router,
    make_router,
)
from openinfer_sim.replicas._simulation import Simulation
from openinfer_sim.results._plot import plot_runs
from openinfer_sim.results._recorder import Recorder, RequestRecord
from openinfer_sim.results._report import (
    Report,
    Slo,
    format_table,
    make_report,
)
from openinfer_sim.traces._mooncake import read_mooncake
from openinfer_sim.traces._trace import Segment, Session, Trace, Turn
from openinfer_sim.traces._trace_spec import parse_trace, trace_kinds
from openinfer_sim.traces._workloads import (
    AgentMix,
    RequestMix,
    agent_trace,
    burst_trace,
    closed_trace,
    poisson_trace,
)

__all__ = [
    # a run
    "simulate",
    "Run",
    "Setup",
    # traces
    "Trace",
    "Session",
    "Turn",
    "Segment",
    "RequestMix",
    "AgentMix",
    "poisson_trace",
    "burst_trace",
    "closed_trace",
    "agent_trace",
    "read_mooncake",
    "parse_trace",
    "trace_kinds",
    # results
    "Report",
    "Slo",
    "Recorder",
    "RequestRecord",
    "make_report",
    "format_table",
    "plot_runs",
    # the modelled device
    "ModelledExecutor",
    "CostModel",
    "VirtualClock",
    "DeviceFigures",
    "ModelFigures",
    "load_figures",
    "find_device",
    "find_model",
    # replicas and routers
    "Simulation",
    "Replica",
    "Router",
    "Route",
    "RandomRouter",
    "LeastLoadedRouter",
    "PrefixAwareRouter",
    "ROUTERS",
    "make_router",
    # plug-ins for the application
    "ENGINE",
    "launch",
    "add_command",
    # errors
    "SimError",
    "UnknownFigures",
    "TraceError",
    "MissingExtra",
]
