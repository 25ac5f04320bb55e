import json
from collections.abc import Callable
from pathlib import Path

import pytest

from openinfer_contract import Grammar
from openinfer_grammar import GrammarBackend, load_backend
from openinfer_testing.grammar import EOS_TOKEN_IDS, VOCAB_SIZE, tokenizer_json


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizer_json())
    return path


@pytest.fixture
def make_backend(tokenizer: Path) -> Callable[[], GrammarBackend]:
    return lambda: load_backend(
        "llguidance", tokenizer, vocab_size=VOCAB_SIZE, eos_token_ids=EOS_TOKEN_IDS
    )


@pytest.fixture
def backend(make_backend: Callable[[], GrammarBackend]) -> GrammarBackend:
    return make_backend()


@pytest.fixture
def schema_grammar() -> Callable[[object], Grammar]:
    return lambda schema: Grammar(kind="json_schema", text=json.dumps(schema))
