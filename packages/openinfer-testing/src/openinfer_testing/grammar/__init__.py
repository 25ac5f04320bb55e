"""Conformance suite of `GrammarBackend`, and broken back ends that each of its rules must catch."""

from openinfer_testing.grammar._broken import BROKEN_BACKENDS, BrokenBackend
from openinfer_testing.grammar._rules import GRAMMAR_RULES, BackendFactory, GrammarRule
from openinfer_testing.grammar._suite import GrammarConformance
from openinfer_testing.grammar._vocabulary import (
    EOS_TOKEN_IDS,
    VOCAB_SIZE,
    byte_characters,
    decode,
    encode,
    tokenizer_json,
)

__all__ = [
    # the suite of `GrammarBackend`
    "GrammarConformance",
    "GrammarRule",
    "GRAMMAR_RULES",
    "BackendFactory",
    # broken back ends
    "BrokenBackend",
    "BROKEN_BACKENDS",
    # a small vocabulary
    "tokenizer_json",
    "byte_characters",
    "encode",
    "decode",
    "VOCAB_SIZE",
    "EOS_TOKEN_IDS",
]
