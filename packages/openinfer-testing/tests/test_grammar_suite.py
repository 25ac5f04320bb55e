"""Every rule of the grammar suite catches at least one broken back end, and no correct one."""

from pathlib import Path

import pytest

from openinfer_grammar import GrammarBackend, load_backend
from openinfer_testing.grammar import (
    BROKEN_BACKENDS,
    GRAMMAR_RULES,
    BrokenBackend,
    GrammarConformance,
)

CASES = [(broken, rule) for broken, rules in BROKEN_BACKENDS.items() for rule in rules]


@pytest.fixture
def good_factory(tmp_path: Path):
    def factory(content: bytes, *, vocab_size: int, eos_token_ids: tuple[int, ...]):
        path = tmp_path / "tokenizer.json"
        path.write_bytes(content)
        return load_backend("llguidance", path, vocab_size=vocab_size, eos_token_ids=eos_token_ids)

    return factory


@pytest.mark.parametrize(
    ("broken", "rule"), CASES, ids=[f"{broken.__name__}-{rule}" for broken, rule in CASES]
)
def test_a_broken_backend_is_caught(broken: type[BrokenBackend], rule: str, good_factory) -> None:
    with pytest.raises(AssertionError):
        GRAMMAR_RULES[rule].check(broken.over(good_factory))


def test_every_rule_catches_something() -> None:
    assert {rule for rules in BROKEN_BACKENDS.values() for rule in rules} == {*GRAMMAR_RULES}


class TestUnbroken(GrammarConformance):
    @pytest.fixture
    def backend_factory(self, good_factory):
        def factory(*arguments: object, **options: object) -> GrammarBackend:
            return BrokenBackend(good_factory(*arguments, **options))

        return factory
