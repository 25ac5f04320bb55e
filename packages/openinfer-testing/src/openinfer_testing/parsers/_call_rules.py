"""Every rule that a `CallForm` keeps: what its grammar lets through, its parser reads."""

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
"""What the model is offered; all of it strict."""
_FRAGMENTS = (
    *('"', '{"', '": ', "{", "}", "[", "]", ", ", "\\", "\\n", "\n", " ", "<", "</", ">", "a"),
    *("1", "9", "-", ".5", "e9", "true", "null", "None", "C", '"lat": ', "```", "é"),
    *("<tool_call>", "</tool_call>", "</function>", "</parameter>", "<think>"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCase:
    """A parser that says how calls are written, and what its models write."""

    form: CallForm
    written: Sequence[str]
    """Whole answers of calls of `CALL_TOOLS` and nothing else."""
    backend: BackendName = "llguidance"
    """What holds the answers."""


@dataclass(frozen=True, slots=True)
class CallRule:
    """Something every `CallForm` does.

    Attributes:
        body: tries it; raises AssertionError if the form does not.
    """

    body: Callable[[CallCase], None]

    @property
    def name(self) -> str:
        """The rule in a few words."""
        return self.body.__name__

    def check(self, case: CallCase) -> None:
        """Holds a parser to the rule.

        Raises:
            AssertionError: the rule is broken.
        """
        assert isinstance(case.form, CallForm), f"{case.form} does not say how calls are written"
        try:
            self.body(case)
        except AssertionError as error:
            raise AssertionError(f"{self.name}: {error}") from error


def what_models_write_is_allowed(case: CallCase) -> None:
    """Whole answers, where calls are demanded and where they are strict."""
    assert case.written, "no answers to compare with"
    for is_required in (True, False):
        for text in case.written:
            grammar = _grammar(case.form, is_required=is_required)
            assert allows(grammar, text, case.backend), f"{text!r} is not allowed"


def demanded_calls_are_read_back(case: CallCase) -> None:
    """Nothing but whole calls of the tools, by their schemas; one where one is asked for."""
    for is_single in (True, False):
        texts = _drawn(case, is_required=True, is_single=is_single)
        for text in texts:
            turn = _read(case.form, text)
            assert turn.calls, f"no call in {text!r}"
            assert not turn.content, f"{turn.content!r} is left of {text!r}"
            assert len(turn.calls) == 1 or not is_single, f"several calls in {text!r}"
            for call in turn.calls:
                _check(call, text)
        names = {call.name for text in texts for call in _read(case.form, text).calls}
        assert names == {"weather", "note", "ping"}, f"{names} in {_NUM_DRAWS} answers"


def a_named_call_is_of_that_tool(case: CallCase) -> None:
    """Whatever else there is."""
    for text in _drawn(case, is_required=True, is_single=True, named="note"):
        (call,) = _read(case.form, text).calls
        assert call.name == "note", text
        _check(call, text)


def strict_calls_are_held_in_free_text(case: CallCase) -> None:
    """However a call begins; what is read as a whole call follows its schema."""
    num_calls = 0
    for seed, opening in enumerate(_openings(case.form)):
        for text in _drawn(case, is_required=False, opening=opening, first_seed=seed):
            for call in _read(case.form, text).calls:
                num_calls += 1
                _check(call, text)
    assert num_calls, "free text came to no call at all"


def calls_of_tools_that_are_not_strict_are_free(case: CallCase) -> None:
    """Beside a strict one: their arguments may be any of their parameters."""
    tools = json.loads(json.dumps(CALL_TOOLS))
    for tool in tools[1:]:
        del tool["function"]["strict"]
    texts = _drawn(case, is_required=False, tools=tools, opening=case.form.call_triggers[0])
    calls = [call for text in texts for call in _read(case.form, text).calls]
    assert {call.name for call in calls} > {"note"}, "no call of a tool that is not strict"
    fits = [call.name in ("weather", "ping") or _fits_note(call) for call in calls]
    assert not all(fits), "arguments that are not strict are held, too"


def names_that_cannot_be_written_are_refused(case: CallCase) -> None:
    """By field; or else they are read back as what they are."""
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
            assert field == "tools[0].function.name", f"{name!r} is refused by {field!r}"


CALL_RULES: Mapping[str, CallRule] = {
    rule.name: rule
    for rule in map(
        CallRule,
        (
            what_models_write_is_allowed,
            demanded_calls_are_read_back,
            a_named_call_is_of_that_tool,
            strict_calls_are_held_in_free_text,
            calls_of_tools_that_are_not_strict_are_free,
            names_that_cannot_be_written_are_refused,
        ),
    )
}
"""Every rule by name."""


def allows(grammar: Grammar, text: str, backend: BackendName = "llguidance") -> bool:
    """Whether a grammar lets a text through, as a whole."""
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
    """Texts that the grammar lets through, each to its end."""
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
    """What stands between the values in a grammar."""
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
    """A text made of fragments, or of their beginnings, where the grammar takes them.

    Bytes drawn evenly would never close a string, nor come near to what ends one.
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
    """A whole call that follows its schema."""
    assert call.is_whole, f"{call.name} is cut off in {text!r}"
    assert call.name in _FITS, f"{call.name} is no tool, in {text!r}"
    assert _FITS[call.name](call), f"{call.name} of {call.arguments!r}, in {text!r}"


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
        raise AssertionError(f"{call.arguments!r} is no JSON: {error}") from error
    return value if isinstance(value, dict) else {}


_FITS: Mapping[str, Callable[[ToolCall], bool]] = {
    "weather": _fits_weather,
    "note": _fits_note,
    "ping": lambda call: _loads(call) == {},
}
