"""Deeply nested grammars are compiled up to a limit, refused beyond it, and never crash."""

import json
import subprocess
import sys
import threading

import pytest

from openinfer_contract import Grammar
from openinfer_grammar import GrammarCompiler, GrammarRefused, validate
from openinfer_grammar._nesting import MAX_LEVELS
from openinfer_testing.grammar import VOCAB_SIZE, encode


def _schema(num_definitions, link):
    definitions = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(num_definitions)}
    definitions[f"d{num_definitions}"] = {"type": "integer"}
    text = json.dumps({"$defs": definitions, "$ref": "#/$defs/d0"}, separators=(",", ":"))
    return Grammar(kind="json_schema", text=text)


def _nested(link, depth):
    def nest(schema):
        for _ in range(depth):
            schema = link(schema)
        return schema

    return nest


def _items(schema):
    return {"items": schema}


def _properties(schema):
    return {"properties": {"a": schema}, "required": ["a"]}


def _any_of(schema):
    return {"anyOf": [schema]}


def _all_of(schema):
    return {"allOf": [schema]}


def _rules(num_rules, form):
    lines = [form.format(i, i + 1) for i in range(num_rules)]
    return Grammar(kind="grammar", text="\n".join(["start: a0", *lines, f'a{num_rules}: "7"']))


def _tag(grammar):
    content = {"type": "json_schema", "json_schema": json.loads(grammar.text)}
    return Grammar(kind="structural_tag", text=json.dumps({"format": content}))


AT_THE_BOUND = {
    "$ref": lambda: _schema(2700, dict),
    "items": lambda: _schema(2040, _items),
    "items within items": lambda: _schema(230, _nested(_items, 20)),
    "properties": lambda: _schema(1600, _properties),
    "properties within properties": lambda: _schema(193, _nested(_properties, 20)),
    "anyOf": lambda: _schema(1600, _any_of),
    "anyOf within anyOf": lambda: _schema(193, _nested(_any_of, 20)),
    "allOf within allOf": lambda: _schema(193, _nested(_all_of, 20)),
    "rules": lambda: _rules(8000, "a{}: a{}"),
    "rules in brackets": lambda: _rules(380, "a{}: " + "(" * 20 + " a{} " + ")" * 20),
    "a structural tag": lambda: _tag(_schema(2000, _items)),
}  # fmt: skip
BEYOND = {
    "$ref": lambda: _schema(4500, dict),
    "items": lambda: _schema(4000, _items),
    "items within items": lambda: _schema(450, _nested(_items, 20)),
    "a cycle": lambda: Grammar(
        kind="json_schema",
        text=_schema(3000, _items).text.replace('{"type":"integer"}', '{"$ref":"#/$defs/d0"}'),
    ),
    "unreachable": lambda: Grammar(
        kind="json_schema",
        text=_schema(4000, _items).text.replace('"$ref":"#/$defs/d0"}', '"type":"no-such"}'),
    ),
    "rules": lambda: _rules(10000, "a{}: a{}"),
    "terminals": lambda: Grammar(
        kind="grammar", text=_rules(10000, "A{}: A{}").text.replace(" a0", " A0")
    ),
    "a schema in a grammar": lambda: Grammar(
        kind="grammar", text=f"start: %json {_schema(4000, _items).text}\n"
    ),
    "a structural tag": lambda: _tag(_schema(4000, _items)),
}  # fmt: skip


@pytest.mark.parametrize("form", AT_THE_BOUND)
def test_a_grammar_at_the_bound_is_compiled_on_the_threads_of_a_server(form, make_backend):
    """A stack overflow would end this process, so the test passes only if the stack was large
    enough."""
    grammar = AT_THE_BOUND[form]()
    validate(grammar)
    compiler = GrammarCompiler(make_backend)
    try:
        constraint = compiler.compile(grammar).result(60)
    finally:
        compiler.close()
    assert constraint.is_masking


@pytest.mark.parametrize("form", ["items", "properties within properties", "anyOf"])
def test_a_step_takes_little_stack_for_a_deep_grammar(form, make_backend, words):
    """Only compiling recurses: the step thread may have a stack of any size."""
    compiler = GrammarCompiler(make_backend)
    constraints = [compiler.compile(AT_THE_BOUND[form]()).result(60)]
    compiler.close()
    openers = encode("[1" if form == "items" else "{1")

    def step():
        constraint = constraints.pop()
        for _ in range(30):
            constraint.fill_mask(words)
            allowed = (each for each in openers if words[each // 32] >> each % 32 & 1)
            constraint.accept([constraint.forced[0] if constraint.forced else next(allowed)])
        is_done.append(True)

    is_done = []
    before = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(target=step)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert is_done == [True]


@pytest.fixture
def words():
    import numpy as np

    return np.zeros(-(-VOCAB_SIZE // 32), np.uint32)


@pytest.mark.parametrize("form", BEYOND)
def test_a_grammar_beyond_the_bound_is_refused(form, backend):
    grammar = BEYOND[form]()
    for check in (validate, backend.compile):
        with pytest.raises(GrammarRefused, match=str(MAX_LEVELS)):
            check(grammar)


def test_a_wide_grammar_is_not_a_deep_one():
    names = [f"p{i}" for i in range(3000)]
    properties = {name: {"$ref": "#/$defs/word"} for name in names}
    schema = {"properties": properties, "$defs": {"word": {"type": "string"}}}
    validate(Grammar(kind="json_schema", text=json.dumps(schema)))
    validate(Grammar(kind="choice", text=json.dumps(names)))


def test_definitions_that_refer_to_each_other_are_accepted():
    names = [f"d{i}" for i in range(40)]
    branches = [{"$ref": f"#/$defs/{name}"} for name in names]
    node = {"type": "object", "properties": {"next": {"anyOf": branches}}}
    schema = {"$defs": dict.fromkeys(names, node), "$ref": "#/$defs/d0"}
    validate(Grammar(kind="json_schema", text=json.dumps(schema)))


CRASHED = """
import json, threading
from openinfer_contract import Grammar
from openinfer_grammar import GrammarRefused, validate

definitions = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(2000)}
definitions["d2000"] = {}
text = json.dumps({"$defs": definitions, "$ref": "#/$defs/d0"})
threading.stack_size(1 << 20)
thread = threading.Thread(target=validate, args=[Grammar(kind="json_schema", text=text)])
thread.start()
thread.join()
"""


def test_a_deep_schema_does_not_overflow_the_callers_stack():
    found = subprocess.run([sys.executable, "-c", CRASHED], capture_output=True, timeout=60)
    assert found.returncode == 0, found.stderr
