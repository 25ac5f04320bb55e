"""Conformance suite of `EngineHandle`, and broken engines that each of its rules must catch."""

from openinfer_testing.engine._broken import BROKEN_ENGINES
from openinfer_testing.engine._broken_base import BrokenEngine
from openinfer_testing.engine._harness import EngineFactory, EngineNeeds, Recorder, Session
from openinfer_testing.engine._rule import Rule
from openinfer_testing.engine._rules import RULES, SLOW_RULES
from openinfer_testing.engine._suite import (
    EngineConformance,
    assert_conforms,
    engine_options,
    modelled_options,
)

__all__ = [
    "EngineConformance",
    "EngineFactory",
    "EngineNeeds",
    "assert_conforms",
    "engine_options",
    "modelled_options",
    "Rule",
    "RULES",
    "SLOW_RULES",
    "Session",
    "Recorder",
    "BrokenEngine",
    "BROKEN_ENGINES",
]
