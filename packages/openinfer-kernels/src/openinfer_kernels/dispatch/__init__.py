"""Finding the installed ops, choosing the back end of each, and reporting the choice."""

from openinfer_kernels.dispatch._choice import (
    Choice,
    Regime,
    backend_module,
    choose,
    is_of_part,
    why_not,
)
from openinfer_kernels.dispatch._ops import KERNELS, Op, find_op, op_names, outside_digest
from openinfer_kernels.dispatch._report import OpReport, describe

__all__ = [
    "KERNELS",
    "Choice",
    "Op",
    "OpReport",
    "Regime",
    "backend_module",
    "choose",
    "describe",
    "find_op",
    "is_of_part",
    "op_names",
    "outside_digest",
    "why_not",
]
