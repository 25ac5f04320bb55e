"""Random schemas with a random model: refused by keyword, or the output is valid."""

import functools
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace
from openai import BadRequestError, OpenAI

from openinfer import LLM, SamplingParams
from openinfer_contract import (
    EventBuffer,
    Finished,
    GenerateRequest,
    Grammar,
    Rejected,
    Sampling,
    StopRules,
    TokenEvent,
    pack_ids,
    unpack_ids,
)
from openinfer_grammar import Constraint, GrammarRefused, load_backend, validate
from openinfer_runtime import TorchExecutor
from openinfer_tiny import CHECKPOINT

NUM_SCHEMAS = 150
NUM_OVER_HTTP = NUM_OF_OTHERS = 40
OPTIONS = {"load_format": "dummy", "device": "cpu", "dtype": "float32", "max_num_seqs": 32}
MAX_TOKENS = 500
_WORDS = ("red", "dark green", "é\n", '"', "7", "")
_ODD = (
    {"uniqueItems": True},
    {"not": {"type": "null"}},
    {"contains": {"type": "integer"}},
    {"if": {"type": "string"}, "then": {"minLength": 1}},
    {"dependentRequired": {"a": ["b"]}},
    {"propertyNames": {"maxLength": 3}},
    {"format": "no-such-format"},
    {"pattern": "(?=a)b"},
    {"oneOf": [{"maxLength": 3}, {"maxLength": 5}]},
    {"$ref": "#/$defs/missing"},
    {"minLength": 5, "maxLength": 2},
)


def _scalar(chance: random.Random) -> dict[str, object]:
    kind = chance.choice(("string", "pattern", "integer", "number", "bool", "null", "enum", "date"))
    if kind == "string":
        low = chance.randrange(3)
        return {"type": "string", "minLength": low, "maxLength": low + chance.randrange(8)}
    if kind == "pattern":
        return {"type": "string", "pattern": chance.choice(("^[a-c]{1,4}$", r"^\d{2}-[x-z]+$"))}
    if kind == "integer":
        low = chance.randrange(-50, 50)
        bounds = {"minimum": low, "maximum": low + chance.randrange(200)}
        return {"type": "integer", **(bounds if chance.random() < 0.7 else {})}
    if kind == "number":
        return {"type": "number", "minimum": -2.5, "exclusiveMaximum": chance.choice((3, 7.25))}
    if kind == "enum":
        return {"enum": chance.sample([*_WORDS, 3, None, True, 2.5], 3)}
    if kind == "date":
        return {"type": "string", "format": "date"}
    return {"type": {"bool": "boolean", "null": "null"}[kind]}


def _schema(chance: random.Random, depth: int = 3) -> dict[str, object]:
    """Returns a schema with bounds for all strings and arrays."""
    draw = chance.random()
    if depth == 0 or draw < 0.25:
        return _scalar(chance)
    if draw < 0.45:
        low = chance.randrange(2)
        items = _schema(chance, depth - 1)
        bounds = {"minItems": low, "maxItems": low + chance.randrange(3)}
        return {"type": "array", "items": items, **bounds}
    if draw < 0.55:
        return {"anyOf": [_schema(chance, depth - 1) for _ in range(2)]}
    if draw < 0.62:
        return {"const": {"a": [1, chance.choice(_WORDS)], "b": None}}
    names = chance.sample(["a", "b c", "name", "ü", 'q"'], chance.randrange(1, 4))
    return {
        "type": "object",
        "properties": {name: _schema(chance, depth - 1) for name in names},
        "required": chance.sample(names, chance.randrange(len(names) + 1)),
        "additionalProperties": False,
    }


def _spoiled(schema: dict[str, object], chance: random.Random) -> dict[str, object]:
    """Returns the schema with a keyword that is hard to enforce, at a random place."""
    odd = chance.choice(_ODD)
    kind = "array" if {"uniqueItems", "contains"} & {*odd} else "string"
    if {"dependentRequired", "propertyNames"} & {*odd}:
        kind = "object"
    part = odd if "$ref" in odd else {"type": kind, **odd}
    properties = {"part": part, "rest": schema}
    return {"type": "object", "properties": properties, "required": [*properties]}


def _keywords(schema: object) -> set[str]:
    if isinstance(schema, dict):
        return {*schema}.union(*(_keywords(value) for value in schema.values()))
    if isinstance(schema, list):
        return set().union(*(_keywords(item) for item in schema))
    return set()


def _schemas(seed: int, num_schemas: int) -> list[dict[str, object]]:
    """Returns schemas, every fifth of them with a hard keyword."""
    chance = random.Random(seed)
    schemas = [_schema(chance) for _ in range(num_schemas)]
    return [_spoiled(s, chance) if n % 5 == 4 else s for n, s in enumerate(schemas)]


def _refusal(schema: dict[str, object]) -> GrammarRefused | None:
    """Returns the front end's objection to a schema, which names a keyword."""
    refused = None
    try:
        validate(Grammar(kind="json_schema", text=json.dumps(schema)))
    except GrammarRefused as error:
        refused = error
    assert refused is None or refused.keyword in _keywords(schema), refused
    return refused


def _check(schema: dict[str, object], text: str) -> None:
    jsonschema.Draft202012Validator(schema).validate(json.loads(text))


def _check_shares(num_schemas: int, num_refused: int, num_answered: int, num_ended: int) -> None:
    assert num_refused >= num_schemas // 10
    assert num_answered >= num_schemas // 2
    assert num_ended >= 0.8 * num_answered, f"{num_ended} of {num_answered} ended by themselves"


@pytest.fixture(scope="module")
def llm():
    with LLM(**OPTIONS) as llm:
        yield llm


def _answers(
    llm: LLM, seed: int, num_schemas: int = NUM_SCHEMAS
) -> Iterator[tuple[dict[str, object], TokenEvent]]:
    """Returns random schemas with the outcome of a request for each."""
    schemas, buffers = _schemas(seed, num_schemas), []
    for number, schema in enumerate(schemas):
        buffers.append(EventBuffer())
        request = GenerateRequest(
            request_id=f"schema-{seed}-{number}",
            prompt_token_ids=pack_ids([5, 6, 7]),
            stop=StopRules(max_tokens=MAX_TOKENS),
            sampling=Sampling(temperature=2.0, seed=seed * NUM_SCHEMAS + number),
            grammar=Grammar(kind="json_schema", text=json.dumps(schema)),
        )
        llm.engine.submit(request, buffers[-1])
    for schema, buffer in zip(schemas, buffers, strict=True):
        event = buffer.get_blocking(60)
        while event.end is None:
            event = event.merged(buffer.get_blocking(60))
        yield schema, event


@pytest.mark.parametrize(
    "seed", [20, *(pytest.param(seed, marks=pytest.mark.long) for seed in (100,))]
)
def test_every_schema_is_refused_by_keyword_or_answered_validly(llm, seed):
    num_answered = num_ended = num_refused = 0
    for schema, event in _answers(llm, seed):
        refused = _refusal(schema)
        if isinstance(event.end, Rejected):
            num_refused += 1
            assert refused is not None, "the front end lets it pass, the engine does not"
            assert event.end.message == f"grammar: {refused}"
            assert refused.keyword in event.end.message
            continue
        assert refused is None, f"the front end refuses what the engine takes: {refused}"
        assert isinstance(event.end, Finished), event.end
        num_answered += 1
        if event.end.reason == "stop":
            num_ended += 1
            _check(schema, llm.text.decode(unpack_ids(event.token_ids)))
    _check_shares(NUM_SCHEMAS, num_refused, num_answered, num_ended)


def test_so_is_every_schema_by_the_other_backend():
    num_answered = num_ended = 0
    with LLM(**OPTIONS, structured_outputs_backend="xgrammar") as llm:
        for schema, event in _answers(llm, seed=22, num_schemas=NUM_OF_OTHERS):
            if isinstance(event.end, Rejected):
                # The front end accepts the schema, and the engine refuses one of its keywords.
                named = _refusal(schema) or event.end.message.split(":")[1].split(".")[-1].strip()
                assert not isinstance(named, str) or named in _keywords(schema), event.end
                continue
            assert isinstance(event.end, Finished), event.end
            num_answered += 1
            if event.end.reason == "stop":
                num_ended += 1
                _check(schema, llm.text.decode(unpack_ids(event.token_ids)))
    assert num_answered >= NUM_OF_OTHERS // 3
    assert num_ended >= 0.8 * num_answered, f"{num_ended} of {num_answered} ended by themselves"


@pytest.fixture(scope="module")
def server(start_shared_server):
    return start_shared_server("--load-format", "dummy", "--dtype", "float32")


def _ask(client: OpenAI, number: int, schema: dict[str, object], *, stream: bool) -> Any:
    """Returns (finish reason, text), or the error."""
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    fields = {"response_format": form} if number % 2 else {"structured_outputs": {"json": schema}}
    try:
        answer = client.completions.create(
            model="tiny",
            prompt=[5, 6, 7],
            temperature=2.0,
            seed=number,
            max_tokens=MAX_TOKENS,
            stream=stream,
            extra_body=fields,
        )
        chunks = [chunk.choices[0] for chunk in (answer if stream else [answer])]
    except BadRequestError as error:
        return error
    return chunks[-1].finish_reason, "".join(chunk.text for chunk in chunks)


def test_over_http_it_is_the_same(server):
    """Asks with and without streaming, and checks that the text is the same."""
    schemas = _schemas(seed=21, num_schemas=NUM_OVER_HTTP)
    num_answered = num_ended = num_refused = 0
    with ThreadPoolExecutor(16) as threads:
        ask = functools.partial(_ask, server.client)
        whole = threads.map(functools.partial(ask, stream=False), range(len(schemas)), schemas)
        parts = threads.map(functools.partial(ask, stream=True), range(len(schemas)), schemas)
        answers = list(zip(schemas, whole, parts, strict=True))
    for number, (schema, answer, streamed) in enumerate(answers):
        refused = _refusal(schema)
        if isinstance(answer, BadRequestError):
            num_refused += 1
            assert refused is not None, answer
            field = (
                "response_format.json_schema.schema" if number % 2 else "structured_outputs.json"
            )
            assert answer.param == f"{field}.{refused.where}"
            assert str(refused) in answer.message
            assert streamed.message == answer.message
            continue
        assert refused is None, refused
        assert streamed == answer
        num_answered += 1
        reason, text = answer
        if reason == "stop":
            num_ended += 1
            _check(schema, text)
    _check_shares(len(schemas), num_refused, num_answered, num_ended)


SCHEMA = {
    "type": "object",
    "properties": {
        "a_long_name": {"enum": ["x", "yy"]},
        "text": {"type": "string", "maxLength": 6},
        "numbers": {"type": "array", "items": {"type": "integer", "maximum": 50}, "maxItems": 3},
    },
    "required": ["a_long_name", "text", "numbers"],
    "additionalProperties": False,
}


def _outputs(llm, **options):
    params = SamplingParams(
        n=3,
        seed=1,
        temperature=2.0,
        max_tokens=90,
        structured_outputs={"json": SCHEMA},
        **options,
    )
    answers = llm.generate([[5, 6, 7], [8]], params, has_progress_bar=False)
    assert all(json.loads(answer.text) for answer in answers)
    return [answer.token_ids for answer in answers]


def test_given_or_sampled_in_turn_or_in_a_pipeline_it_is_the_same_output(llm, monkeypatch):
    """An executor with two steps in flight gets its masks after the previous step is settled."""
    given, sampled = _outputs(llm), _outputs(llm, logprobs=0)
    assert given == sampled
    assert len({*map(tuple, given)}) > 3
    make = TorchExecutor.__init__

    def pipelined(self, model, cache, info, *more, **options):
        make(self, model, cache, replace(info, depth=2), *more, **options)

    monkeypatch.setattr(TorchExecutor, "__init__", pipelined)
    with LLM(**OPTIONS) as other:
        assert _outputs(other) == given


NAMES = (
    *("city", "days", "temperature", "explanation", "is_capital", "steps", "arguments", "colour"),
    *("get_weather", "firstName", "streetAddress", "date_of_birth", "description", "zip_code"),
)


def test_forced_text_is_spelled_nearly_as_the_tokenizer_would(llm):
    """Encodes a text by its longest tokens: few more tokens than byte-pair encoding's."""
    backend = load_backend(
        "llguidance",
        CHECKPOINT.path() / "tokenizer.json",
        vocab_size=llm.engine.info.vocab_size,
        eos_token_ids=llm.engine.info.eos_token_ids,
    )
    num_forced = num_encoded = 0
    for name in NAMES:
        schema = {
            "type": "object",
            "properties": {name: {"const": name}, "n": {"type": "integer"}},
            "required": [name, "n"],
        }
        grammar = Grammar(kind="json_schema", text=json.dumps(schema))
        forced = list(Constraint(backend.compile(grammar), grammar).forced)
        text = llm.text.decode(forced)
        # A space and the number after it may be one token, so the model chooses that space.
        assert text == json.dumps({name: name, "n": 0}).removesuffix(" 0}")
        encoded = unpack_ids(llm.text.encode(text, add_special_tokens=False))
        num_forced += len(forced)
        num_encoded += len(encoded)
    assert num_encoded <= num_forced <= 1.05 * num_encoded
