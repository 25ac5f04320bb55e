from functools import partial
from pathlib import Path

import pytest

from openinfer_grammar import BackendName, GrammarBackend, load_backend
from openinfer_testing.grammar import GrammarConformance


def _load(
    name: BackendName,
    folder: Path,
    content: bytes,
    *,
    vocab_size: int,
    eos_token_ids: tuple[int, ...],
) -> GrammarBackend:
    path = folder / "tokenizer.json"
    path.write_bytes(content)
    return load_backend(name, path, vocab_size=vocab_size, eos_token_ids=eos_token_ids)


class TestLLGuidance(GrammarConformance):
    @pytest.fixture
    def backend_factory(self, tmp_path):
        return partial(_load, "llguidance", tmp_path)


class TestXGrammar(GrammarConformance):
    @pytest.fixture
    def backend_factory(self, tmp_path):
        return partial(_load, "xgrammar", tmp_path)
