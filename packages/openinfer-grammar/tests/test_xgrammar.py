"""Schemas and tags lowered to xgrammar, or refused by name."""

import json

import pytest

from openinfer_contract import Grammar
from openinfer_grammar import GrammarBackend, GrammarRefused, load_backend
from openinfer_grammar.xgrammar._lowering import _may_match, honoured_schema
from openinfer_testing.grammar import EOS_TOKEN_IDS, VOCAB_SIZE, encode, tokenizer_json

SHORT = {"type": "string", "maxLength": 3}
EXCLUDES = ["</parameter>", "</function>"]


@pytest.fixture(scope="module")
def backend(tmp_path_factory) -> GrammarBackend:
    path = tmp_path_factory.mktemp("xgrammar") / "tokenizer.json"
    path.write_bytes(tokenizer_json())
    return load_backend("xgrammar", path, vocab_size=VOCAB_SIZE, eos_token_ids=EOS_TOKEN_IDS)


def takes(backend, grammar, text: str | bytes) -> bool:
    ids = [*(encode(text) if isinstance(text, str) else text), EOS_TOKEN_IDS[0]]
    return backend.compile(grammar).accept(ids).num_tokens == len(ids)


@pytest.mark.parametrize("name", ["x", "default", "enum", "type"])
@pytest.mark.parametrize("keyword", ["properties", "$defs"])
def test_bounded_lengths_become_patterns_under_every_key(keyword, name):
    schema = {"type": "object", keyword: {name: SHORT}}
    assert set(honoured_schema(schema)[keyword][name]) == {"type", "pattern"}


def test_values_of_default_are_not_rewritten():
    assert honoured_schema({"default": SHORT}) == {"default": SHORT}


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "array", "maxItems": 2}, [1, {"a": None}], [1, 2, 3]),
        ({"type": "array", "minItems": 1}, [[]], []),
        ({"type": "object", "required": ["a", "b"]}, {"a": 1, "b": "c"}, {"a": 1}),
        ({"type": "object", "properties": {"a": {}}, "required": ["b"]}, {"a": 1, "b": 2}, {}),
        (
            {"type": "object", "additionalProperties": {"type": "null"}, "required": ["a"]},
            {"a": None},
            {"a": 1},
        ),
        ({"enum": ["a", 1, None], "type": ["string", "integer", "null"]}, 1, 2),
        ({"const": "a b", "type": "string"}, "a b", "a"),
    ],
    ids=str,
)
def test_schemas_that_xgrammar_misreads_are_rewritten(backend, schema, good, bad):
    grammar = Grammar(kind="json_schema", text=json.dumps(schema))
    assert takes(backend, grammar, json.dumps(good))
    assert not takes(backend, grammar, json.dumps(bad))


def test_strings_of_bounded_length_are_valid_json(backend):
    grammar = Grammar(kind="json_schema", text=json.dumps(SHORT))
    for inner, is_text in (
        *(
            ("\ud7ff\ue000\U0010ffff".encode(), True),
            ("é!#".encode(), True),
            (b"\xe0\x80\x80", False),
        ),
        *((b"\xed\xa0\x80", False), (b"\xf0\x80\x80\x80", False), (b"\x1f", False)),
    ):
        text = b'"' + inner + b'"'
        assert backend.compile(grammar).accept([*text]).num_tokens == len(text) or not is_text
        assert takes(backend, grammar, text) == is_text, inner


@pytest.mark.parametrize(
    ("schema", "keyword", "where"),
    [
        ({"maxItems": 1}, "maxItems", "maxItems"),
        ({"type": ["array", "null"], "minItems": 1}, "minItems", "minItems"),
        ({"items": {"required": ["a"]}}, "required", "items.required"),
        (
            {"type": "object", "required": ["a"], "additionalProperties": False},
            "required",
            "required",
        ),
        ({"enum": [1, "a"], "type": "string"}, "enum", "enum"),
        ({"const": 1.5, "type": "integer"}, "const", "const"),
        ({"const": float("inf"), "type": "integer"}, "const", "const"),
        ({"const": True, "type": "integer"}, "const", "const"),
        ({"const": 1, "anyOf": [{}]}, "const", "const"),
        ({"anyOf": [{"type": "integer"}], "type": "string"}, "type", "type"),
        ({"$ref": "#", "maxItems": 1, "type": "array"}, "maxItems", "maxItems"),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": 3}, "minimum", "minimum"),
        ({"type": "string", "pattern": "a", "maxLength": 1}, "pattern", "pattern"),
        ({"type": "string", "pattern": "(?=a)b"}, "pattern", "pattern"),
        ({"type": "string", "pattern": r"a\b"}, "pattern", "pattern"),
        ({"not": {}}, "not", "not"),
    ],
    ids=str,
)  # fmt: skip
def test_keywords_that_xgrammar_ignores_are_refused_by_name(schema, keyword, where):
    with pytest.raises(GrammarRefused) as caught:
        honoured_schema(schema)
    assert (caught.value.keyword, caught.value.where) == (keyword, where)


def test_look_around_is_refused(backend):
    with pytest.raises(GrammarRefused, match="look-around"):
        backend.compile(Grammar(kind="regex", text="(?!a)b"))
    assert takes(backend, Grammar(kind="regex", text="(?:a|b)c"), "bc")


def _tagged(**regex) -> Grammar:
    content = {"type": "regex", "excludes": EXCLUDES, **regex}
    tag = {"type": "tag", "begin": "<x>", "content": content, "end": "\n</x>"}
    return Grammar(kind="structural_tag", text=json.dumps({"format": tag}))


@pytest.mark.parametrize(
    ("pattern", "good", "bad"),
    [
        (r"(.|\n){0,10}", ["", "</functio", "<\n"], ["a" * 11]),
        (r"(.|\n){0,}", ["", "<", "</function", "a\nb"], ["a</function>", "</parameter>"]),
        (r"(.|\n){1,}", ["<", "</", "<a</b>", "é", "\n"], ["", "</function>", "a</parameter>b"]),
        (r"[0-9+-]{2}(\.|x)", ["+1."], ["+1<"]),
    ],
)
def test_text_between_tags_excludes_the_end_tag(backend, pattern, good, bad):
    for texts, is_taken in ((good, True), (bad, False)):
        for text in texts:
            assert takes(backend, _tagged(pattern=pattern), f"<x>{text}\n</x>") == is_taken, text


@pytest.mark.parametrize(
    "pattern", [r"(.|\n){0,11}", r"(.|\n){2,}", "a.b", "[^a]", "[!-~]+", r"\S"]
)
def test_regexes_that_could_match_their_end_are_refused(backend, pattern):
    with pytest.raises(GrammarRefused, match="exclude </parameter> and </function>") as caught:
        backend.compile(_tagged(pattern=pattern))
    assert (caught.value.keyword, caught.value.where) == ("pattern", "format.content.pattern")


@pytest.mark.parametrize(
    ("pattern", "may"),
    [
        ("[+-]x", False),
        (r"a\.b", False),
        (r"\d+(a|b)-", False),
        (r"[\]a-z]", False),
        ("<", True),
        (r"\<", True),
        (r"[\W]", True),
        (r"\x3c", True),
        ("[a<]", True),
        ("[^<]", True),
    ],
)
def test_whether_a_regex_may_match_a_character(pattern, may):
    assert _may_match(pattern, {"<"}) == may


@pytest.mark.parametrize(
    ("pattern", "character", "may"),
    [
        (r"\w+", "s", True),
        (r"\w+", "<", False),
        (r"\w", "é", True),
        (r"\W", "é", True),
        (r"\W", "s", False),
        (r"[\w.]", "s", True),
        (r"\d", "7", True),
        (r"\d", "d", False),
        (r"\D", "s", True),
        (r"\s", "\t", True),
        (r"\S", "\t", False),
        (r"a\n", "\n", True),
        (r"[\t]", "\t", True),
        (r"a\n", "n", False),
        (r"[\t-~]", "s", True),
        (r"[!-\x7e]", "s", True),
        (r"[!-\]]", "]", True),
        (r"[\t-\r]", "s", False),
        (r"[+-]", "-", True),
    ],
)
def test_whether_an_escape_may_match(pattern, character, may):
    assert _may_match(pattern, {character}) == may


@pytest.mark.parametrize(("pattern", "end"), [(r"\w+", "stop"), (r"a\s*b", "\n\n")])
def test_classes_that_could_match_an_excluded_text_are_refused(backend, pattern, end):
    with pytest.raises(GrammarRefused, match="xgrammar cannot exclude"):
        backend.compile(_tagged(pattern=pattern, excludes=[end]))


def test_json_within_tags_has_the_usual_spelling(backend):
    content = {"type": "json_schema", "json_schema": {"type": "object", "required": ["a"]}}
    form = {"type": "tag", "begin": "<x>", "content": content, "end": "</x>"}
    grammar = Grammar(kind="structural_tag", text=json.dumps({"format": form}))
    assert takes(backend, grammar, '<x>{"a": [1, 2]}</x>')
    assert not takes(backend, grammar, '<x>{"a":  [1, 2]}</x>')
    assert not takes(backend, grammar, '<x>{"a": [1, 2]} </x>')
    assert not takes(backend, grammar, '<x>{"b": [1, 2]}</x>')
