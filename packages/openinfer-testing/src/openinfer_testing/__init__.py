"""Conformance suites, fakes and tiny checkpoints: a development dependency.

The suite of `EngineHandle` is `openinfer_testing.engine`; what needs torch is
`openinfer_testing.torch`.
"""

from openinfer_testing._counting import CountingShape, ZeroCostExecutor, next_token
from openinfer_testing._modelled import (
    ModelledExecutor,
    ModelledOptions,
    modelled_executor,
    zero_cost_executor,
)

__all__ = [
    # executors without a device
    "ZeroCostExecutor",
    "CountingShape",
    "next_token",
    "ModelledExecutor",
    "ModelledOptions",
    # factories that an engine process can name
    "zero_cost_executor",
    "modelled_executor",
]
