"""Rules of `CallForm`: its parser must read every text that its grammar allows."""

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from openinfer_contract import Grammar
from openinfer_grammar import BackendName, GrammarBackend, Matcher, load_backend, num_mask_words
from openinfer_testing.grammar import EOS_TOKEN_IDS, VOCAB_SIZE, decode, encode, tokenizer_json
from openinfer_text import (
    AssistantTurn,
    CallForm,
    OutputParser,
    ParseContext,
    StructureError,
    ToolCall,
    grammar_of_calls,
)

_MAX_STEPS = 4000
_NUM_DRAWS = 12
_PLACE = {
    "type": "object",
    "properties": {"lat": {"type": "integer"}, "names": {"type": "array", "maxItems": 2}},
    "required": ["lat"],
    "additionalProperties": False,
}
_WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 8},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F", "null", 7]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
_NOTE = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "place": {"$ref": "#/$defs/place"},
        "size": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "about": {"type": ["string", "null"]},
        "is_new": {"type": "boolean"},
    },
    "required": ["text", "place"],
    "additionalProperties": False,
    "$defs": {"place": _PLACE},
}
CALL_TOOLS: Sequence[Mapping[str, Any]] = (
    {"type": "function", "function": {"name": "weather", "parameters": _WEATHER, "strict": True}},
    {"type": "function", "function": {"name": "note", "parameters": _NOTE, "strict": True}},
    {"type": "function", "function": {"name": "ping", "strict": True}},
)
"""Definitions of the tools that the model is offered. All of them are strict."""
_FRAGMENTS = (
    *('"', '{"', '": ', "{", "}", "[", "]", ", ", "\\", "\\n", "\n", " ", "<", "</", ">", "a"),
    *("1", "9", "-", ".5", "e9", "true", "null", "None", "C", '"lat": ', "```", "é"),
    *("<tool_call>", "</tool_call>", "</function>", "</parameter>", "<think>"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCase:
    """A call form, and samples of the calls that its models write."""

    form: CallForm
    written: Sequence[str]
    """Complete outputs that consist of calls of `CALL_TOOLS`."""
    backend: BackendName = "llguidance"
    """Grammar back end that constrains the outputs."""


@dataclass(frozen=True, slots=True)
class CallRule:
    """Requirement that every `CallForm` must satisfy.

    Attributes:
        body: Checks the requirement; raises AssertionError if the form violates it.
    """

    body: Callable[[CallCase], None]

    @property
    def name(self) -> str:
        """Name of the rule, which is the name of its function."""
        return self.body.__name__

    def check(self, case: CallCase) -> None:
        """Checks one call form.

        Raises:
            AssertionError: The form violates the rule.
        """
        assert isinstance(case.form, CallForm), f"{case.form} must implement CallForm"
        try:
            self.body(case)
        except AssertionError as error:
            raise AssertionError(f"{self.name}: {error}") from error


def native_call_syntax_is_allowed(case: CallCase) -> None:
    """The grammar must allow the calls that models write, both if calls are required and if not."""
    assert case.written, "CallCase.written must hold at least one output"
    for is_required in (True, False):
        for text in case.written:
            grammar = _grammar(case.form, is_required=is_required)
            assert allows(grammar, text, case.backend), f"the grammar must allow {text!r}"


def required_calls_parse_back(case: CallCase) -> None:
    """If calls are required, every allowed text must parse as complete calls without content.

    The arguments must be valid. If a single call is required, there must be exactly one.
    """
    for is_single in (True, False):
        texts = _drawn(case, is_required=True, is_single=is_single)
        for text in texts:
            turn = _read(case.form, text)
            assert turn.calls, f"the parser must find a call in {text!r}"
            assert not turn.content, (
                f"the parser must find only calls in {text!r}, not the content {turn.content!r}"
            )
            assert len(turn.calls) == 1 or not is_single, (
                f"the grammar must allow only one call, not {text!r}"
            )
            for call in turn.calls:
                _check(call, text)
        names = {call.name for text in texts for call in _read(case.form, text).calls}
        assert names == {"weather", "note", "ping"}, (
            f"the grammar must allow each tool; {_NUM_DRAWS} outputs called {names}"
        )


def named_calls_use_that_tool(case: CallCase) -> None:
    """If a tool is named, the grammar must allow calls of that tool only."""
    for text in _drawn(case, is_required=True, is_single=True, named="note"):
        (call,) = _read(case.form, text).calls
        assert call.name == "note", text
        _check(call, text)


def strict_calls_follow_schemas_in_free_text(case: CallCase) -> None:
    """In free text, every complete call of a strict tool must have valid arguments.

    This holds for every way in which the call may begin.
    """
    num_calls = 0
    for seed, opening in enumerate(_openings(case.form)):
        for text in _drawn(case, is_required=False, opening=opening, first_seed=seed):
            for call in _read(case.form, text).calls:
                num_calls += 1
                _check(call, text)
    assert num_calls, "the grammar must allow calls in free text"


def non_strict_calls_are_unconstrained(case: CallCase) -> None:
    """Beside a strict tool, tools that are not strict must accept any arguments."""
    tools = json.loads(json.dumps(CALL_TOOLS))
    for tool in tools[1:]:
        del tool["function"]["strict"]
    texts = _drawn(case, is_required=False, tools=tools, opening=case.form.call_triggers[0])
    calls = [call for text in texts for call in _read(case.form, text).calls]
    assert {call.name for call in calls} > {"note"}, (
        "the grammar must allow calls of tools that are not strict"
    )
    fits = [call.name in ("weather", "ping") or _fits_note(call) for call in calls]
    assert not all(fits), "arguments of a tool that is not strict must be unconstrained"


def unwritable_names_are_refused(case: CallCase) -> None:
    """A function name must parse back unchanged, or be refused with the field that holds it."""
    for name in ("a b", "a>b", "a:b", "ä", "a\nb", "{", "x" * 300):
        tool = {"type": "function", "function": {"name": name}}
        texts: list[str] = []
        field = ""
        try:
            texts = _drawn(case, is_required=True, is_single=True, tools=[tool])
        except StructureError as error:
            field = error.field
        if texts:
            assert [call.name for call in _read(case.form, texts[0]).calls] == [name], texts[0]
        else:
            assert field == "tools[0].function.name", (
                f"the refusal of {name!r} must name its field, not {field!r}"
            )


CALL_RULES: Mapping[str, CallRule] = {
    rule.name: rule
    for rule in map(
        CallRule,
        (
            native_call_syntax_is_allowed,
            required_calls_parse_back,
            named_calls_use_that_tool,
            strict_calls_follow_schemas_in_free_text,
            non_strict_calls_are_unconstrained,
            unwritable_names_are_refused,
        ),
    )
}
"""Every rule, by name."""


def allows(grammar: Grammar, text: str, backend: BackendName = "llguidance") -> bool:
    """Returns whether a grammar allows a text as a complete output."""
    ids = [*encode(text), EOS_TOKEN_IDS[0]]
    return _backend(backend).compile(grammar).accept(ids).num_tokens == len(ids)


@cache
def _backend(name: BackendName) -> GrammarBackend:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "tokenizer.json"
        path.write_bytes(tokenizer_json())
        return load_backend(name, path, vocab_size=VOCAB_SIZE, eos_token_ids=EOS_TOKEN_IDS)


def _grammar(
    form: CallForm,
    tools: Sequence[Mapping[str, Any]] = CALL_TOOLS,
    *,
    is_required: bool,
    is_single: bool = False,
    named: str | None = None,
) -> Grammar:
    return grammar_of_calls(form, tools, is_required=is_required, is_single=is_single, named=named)


def _drawn(case: CallCase, *, opening: str = "", first_seed: int = 0, **options: Any) -> list[str]:
    """Returns complete texts drawn from a grammar."""
    backend, grammar = _backend(case.backend), _grammar(case.form, **options)
    fragments = [*_FRAGMENTS, *_texts(json.loads(grammar.text)), *case.form.call_triggers]
    texts = []
    for seed in range(first_seed, first_seed + _NUM_DRAWS):
        matcher = backend.compile(grammar)
        taken = matcher.accept(encode(opening)).num_tokens
        assert taken == len(encode(opening)), f"free text may not begin with {opening!r}"
        texts.append(opening + _draw(matcher, random.Random(seed), fragments))
    return texts


def _texts(part: Any) -> Iterator[str]:
    """Yields the literal texts of a structural tag: begins, ends and separators."""
    if isinstance(part, dict):
        for key, value in part.items():
            if key in ("begin", "end", "separator") and value:
                yield value
            elif key != "json_schema":
                yield from _texts(value)
    elif isinstance(part, list):
        for item in part:
            yield from _texts(item)


def _draw(matcher: Matcher, chance: random.Random, fragments: Sequence[str]) -> str:
    """Returns a text made of fragments, or of prefixes of fragments, that the grammar allows.

    Bytes drawn uniformly would hardly ever close a string or form an end marker.
    """
    ids: list[int] = []
    rows = np.zeros((1, num_mask_words(VOCAB_SIZE)), np.uint32)
    while len(ids) < _MAX_STEPS:
        matcher.fill_mask(rows)
        allowed = np.unpackbits(rows.view(np.uint8), bitorder="little").nonzero()[0].tolist()
        if EOS_TOKEN_IDS[0] in allowed and (len(allowed) <= 2 or chance.random() < 0.3):
            return decode(ids)
        wanted = encode(chance.choice(fragments))
        taken = wanted[: matcher.accept(wanted).num_tokens]
        if not taken:
            taken = [chance.choice([i for i in allowed if i not in EOS_TOKEN_IDS])]
            assert matcher.accept(taken).num_tokens == 1, "the mask allows what accept does not"
        ids += taken
    raise AssertionError(f"no end after {_MAX_STEPS} tokens: {decode(ids)[-200:]!r}")


def _openings(form: CallForm) -> list[str]:
    return ["", *form.call_triggers, *(f"It says {trigger}" for trigger in form.call_triggers)]


def _read(form: Any, text: str) -> AssistantTurn:
    parser = OutputParser(ParseContext(tools=CALL_TOOLS), reasoning=None, tools=form)
    turn = AssistantTurn()
    turn.add(parser.push(text))
    turn.add(parser.finish())
    return turn


def _check(call: ToolCall, text: str) -> None:
    """Checks that a call is complete and valid under its schema."""
    assert call.is_whole, f"the call of {call.name} is incomplete in {text!r}"
    assert call.name in _FITS, f"the call names {call.name}, which is not a tool, in {text!r}"
    assert _FITS[call.name](call), (
        f"invalid arguments for {call.name}: {call.arguments!r}, in {text!r}"
    )


def _fits_weather(call: ToolCall) -> bool:
    value = _loads(call)
    return (
        {"city", "days"} <= value.keys() <= {"city", "days", "unit"}
        and isinstance(value["city"], str)
        and 1 <= len(value["city"]) <= 8
        and value["days"] in range(1, 10)
        and value.get("unit", "C") in ("C", "F", "null", 7)
    )


def _fits_note(call: ToolCall) -> bool:
    value = _loads(call)
    place = value.get("place")
    return (
        {"text", "place"} <= value.keys() <= _NOTE["properties"].keys()  # type: ignore[attr-defined]
        and isinstance(value["text"], str)
        and isinstance(place, dict)
        and {"lat"} <= place.keys() <= {"lat", "names"}
        and isinstance(place["lat"], int)
        and len(place.get("names", ())) <= 2
        and isinstance(value.get("size"), int | float | None)
        and isinstance(value.get("about"), str | None)
        and isinstance(value.get("is_new", True), bool)
    )


def _loads(call: ToolCall) -> dict[str, Any]:
    try:
        value = json.loads(call.arguments)
    except ValueError as error:
        raise AssertionError(f"{call.arguments!r} is not JSON: {error}") from error
    return value if isinstance(value, dict) else {}


_FITS: Mapping[str, Callable[[ToolCall], bool]] = {
    "weather": _fits_weather,
    "note": _fits_note,
    "ping": lambda call: _loads(call) == {},
}
