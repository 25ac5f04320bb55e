"""Conformance suites, fakes and tiny checkpoints for tests. A development dependency.

`openinfer_testing.engine`, `.grammar`, `.parsers`, `.tier` and `.content` run without torch.
Helpers that need torch are in `openinfer_testing.torch`.
"""

from openinfer_testing._counting import CountingShape, ZeroCostExecutor, next_token
from openinfer_testing._modelled import (
    ModelledExecutor,
    ModelledOptions,
    modelled_executor,
    zero_cost_executor,
)
from openinfer_testing._scripted import (
    SCRIPTED_LINE,
    ScriptedLine,
    ScriptedOptions,
    install_scripted_line,
    write_scripted_checkpoint,
)
from openinfer_testing._trace import ReadTrace, TracedSpan, read_trace
from openinfer_testing._waiting import wait_until

__all__ = [
    # executors without a device
    "ZeroCostExecutor",
    "CountingShape",
    "next_token",
    "ModelledExecutor",
    "ModelledOptions",
    # executor factories for an engine process
    "zero_cost_executor",
    "modelled_executor",
    # scripted checkpoints
    "write_scripted_checkpoint",
    "install_scripted_line",
    "ScriptedLine",
    "ScriptedOptions",
    "SCRIPTED_LINE",
    # traces
    "read_trace",
    "ReadTrace",
    "TracedSpan",
    # other threads and processes
    "wait_until",
]
