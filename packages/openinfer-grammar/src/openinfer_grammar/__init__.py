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
    # the interface of a backend
    "GrammarBackend",
    "Matcher",
    "Accepted",
    "MaskRows",
    "num_mask_words",
    # installed backends
    "load_backend",
    "check_backend",
    "BackendName",
    # checks without a vocabulary
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
