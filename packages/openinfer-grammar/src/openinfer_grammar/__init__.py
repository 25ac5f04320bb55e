"""Grammars over token ids: compile, fill the mask of the next token, accept, roll back."""

from openinfer_grammar._backend import (
    Accepted,
    GrammarBackend,
    MaskRows,
    Matcher,
    num_mask_words,
)
from openinfer_grammar._compiler import GrammarCompiler
from openinfer_grammar._constraint import Constraint
from openinfer_grammar._installed_backends import BackendName, check_backend, load_backend
from openinfer_grammar._mask_filler import MaskFiller, MaskRow
from openinfer_grammar.errors import (
    BackendUnavailable,
    GrammarError,
    GrammarFailed,
    GrammarRefused,
)
from openinfer_grammar.llguidance._validation import validate

__all__ = [
    # what a backend is
    "GrammarBackend",
    "Matcher",
    "Accepted",
    "MaskRows",
    "num_mask_words",
    # the installed ones
    "load_backend",
    "check_backend",
    "BackendName",
    # whether a grammar can be honoured
    "validate",
    # one output
    "GrammarCompiler",
    "Constraint",
    # the outputs of a step
    "MaskFiller",
    "MaskRow",
    # errors
    "GrammarError",
    "GrammarRefused",
    "GrammarFailed",
    "BackendUnavailable",
]
