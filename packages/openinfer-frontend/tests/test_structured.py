"""Constraints on the output, as the engine receives them."""

import json

import pytest

from openinfer_contract import FEATURES, Failed, Grammar, Rejected, TokenEvent, unpack_ids

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
USER = {"role": "user", "content": "Hi"}
FORMAT = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}


def _tool(name, **fields):
    return {"type": "function", "function": {"name": name, "parameters": SCHEMA} | fields}


def _format_of(grammar):
    assert grammar.kind == "structural_tag"
    return json.loads(grammar.text)["format"]


@pytest.mark.parametrize(
    ("fields", "kind", "content"),
    [
        ({"response_format": FORMAT}, "json_schema", SCHEMA),
        ({"response_format": {"type": "json_object"}}, "json_object", None),
        ({"structured_outputs": {"json": SCHEMA}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "json_schema", SCHEMA),
        ({"structured_outputs": {"json_object": True}}, "json_object", None),
        ({"structured_outputs": {"choice": ["a", "b"], "regex": None}}, "choice", ["a", "b"]),
        ({"structured_outputs": {"structural_tag": {}}}, "structural_tag", {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("route", ["completions", "chat/completions"])
def test_forms_become_grammars(client, engine, route, fields, kind, content):
    body = {"prompt": "Hi"} if route == "completions" else {"messages": [USER]}
    response = client.post(f"/v1/{route}", body | fields)
    assert response.status_code == 200, response.text
    grammar = engine.requests[-1].grammar
    assert grammar.kind == kind
    assert (json.loads(grammar.text) if grammar.text else None) == content
    assert not grammar.start_after


def test_without_a_form_there_is_no_grammar(client, engine):
    client.complete("Hi", response_format={"type": "text"})
    client.complete("Hi", response_format=None, structured_outputs=None)
    client.chat("Hi")
    assert [request.grammar for request in engine.requests] == [None] * 3


def test_the_operators_check_is_asked_before_the_prompt_is_read(make_app, engine, client_of):
    asked = []

    def check(grammar):
        asked.append(grammar)
        return "uniqueItems: no" if len(asked) == 1 else None

    client = client_of(make_app(engine, check_grammar=check))
    body = {"messages": [{"role": "no-such"}], "response_format": FORMAT}
    response = client.post("/v1/chat/completions", body)
    error = response.json()["error"]
    param = "response_format.json_schema.schema.uniqueItems"
    assert (response.status_code, error["param"]) == (400, param)
    assert error["message"] == f"{param}: no"
    assert not engine.requests
    client.chat("Hi", response_format=FORMAT)
    assert asked == [Grammar(kind="json_schema", text=json.dumps(SCHEMA))] * 2
    assert engine.requests[0].grammar == asked[0]


def test_engine_refusals_name_the_bodys_fields(client, engine):
    rejected = Rejected(kind="invalid", field="grammar", message="grammar: a.not: no")
    engine.script = lambda request: [TokenEvent(end=rejected)]
    asked = {
        "response_format.json_schema.schema": {"response_format": FORMAT},
        "structured_outputs.json": {"structured_outputs": {"json": SCHEMA}},
    }
    for param, fields in asked.items():
        response = client.post("/v1/completions", {"prompt": "Hi"} | fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param)
        assert error["message"] == f"{param}: a.not: no"


def test_an_engine_without_grammars_is_asked_for_none(make_app, fakes, client_of):
    engine = fakes.FakeEngine(honoured={*FEATURES} - {"grammar"})
    client = client_of(make_app(engine))
    response = client.post(
        "/v1/completions", {"prompt": "Hi", "structured_outputs": {"regex": "a"}}
    )
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "structured_outputs")
    assert not engine.requests


def test_the_field_that_demands_a_grammar_is_named_without_grammars(
    make_app, fakes, client_of, tool_text
):
    engine = fakes.FakeEngine(honoured={*FEATURES} - {"grammar"})
    engine.script = fakes.hello
    client = client_of(make_app(engine, text=tool_text))
    body = {"messages": [USER], "tools": [_tool("f")]}
    assert client.post("/v1/chat/completions", body).status_code == 200
    strict = _tool("f") | {"function": {"name": "f", "strict": True}}
    for fields, param in (
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [strict]}, "tools"),
    ):
        response = client.post("/v1/chat/completions", body | fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param)
        assert error["message"] == f"{param} is not supported by this engine (fake)"


@pytest.fixture
def tool_client(engine, make_app, tool_text, client_of):
    return client_of(make_app(engine, text=tool_text))


def test_required_calls_exclude_free_text(tool_client, engine):
    tools = [_tool("f"), _tool("g", parameters=None)]
    tool_client.chat("Hi", tools=tools, tool_choice="required")
    form = _format_of(engine.requests[-1].grammar)
    assert (form["type"], form["at_least_one"]) == ("tags_with_separator", True)
    assert not form["stop_after_first"]
    assert [tag["begin"] for tag in form["tags"]] == [
        f'<tool_call>\n{{"name": "{name}", "arguments": ' for name in "fg"
    ]
    assert [tag["content"]["json_schema"] for tag in form["tags"]] == [
        SCHEMA,
        {"type": "object", "properties": {}, "additionalProperties": False},
    ]
    assert {tag["end"] for tag in form["tags"]} == {"}\n</tool_call>"}


def test_a_named_tool_choice_allows_one_call(tool_client, engine):
    choice = {"type": "function", "function": {"name": "g"}}
    tool_client.chat("Hi", tools=[_tool("f"), _tool("g")], tool_choice=choice)
    form = _format_of(engine.requests[-1].grammar)
    assert form["stop_after_first"]
    assert [tag["begin"][19:27] for tag in form["tags"]] == [': "g", "']


def test_strict_tools_constrain_calls_in_free_text(tool_client, engine):
    tool_client.chat("Hi", tools=[_tool("f", strict=True), _tool("g")])
    form = _format_of(engine.requests[-1].grammar)
    assert (form["type"], form["triggers"]) == ("triggered_tags", ["<tool_call>"])
    assert [tag["content"]["json_schema"] for tag in form["tags"]] == [SCHEMA, {"type": "object"}]
    tool_client.chat("Hi", tools=[_tool("g")])
    assert engine.requests[-1].grammar is None


def test_json_output_may_be_combined_with_calls(tool_client, engine):
    tool_client.chat("Hi", tools=[_tool("f")], response_format=FORMAT, parallel_tool_calls=False)
    form = _format_of(engine.requests[-1].grammar)
    answer, calls = form["elements"]
    assert (form["type"], answer["json_schema"]) == ("or", SCHEMA)
    assert (calls["type"], calls["stop_after_first"]) == ("tags_with_separator", True)


@pytest.mark.parametrize("thinks", [True, False])
def test_a_grammar_begins_after_the_reasoning(tool_client, engine, thinks):
    tool_client.chat("Hi", response_format=FORMAT, chat_template_kwargs={"thinks": thinks})
    grammar = engine.requests[-1].grammar
    assert unpack_ids(grammar.start_after) == [262]
    assert unpack_ids(grammar.may_open_with) == ([] if thinks else [261])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": FORMAT, "structured_outputs": {"regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "json": {}}}, "structured_outputs"),
        ({"structured_outputs": {"choice": "ab"}}, "structured_outputs.choice"),
        ({"structured_outputs": {"json": 1}}, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": 1}}, "structured_outputs.json_object"),
        (
            {"structured_outputs": {"disable_any_whitespace": True}},
            "structured_outputs.disable_any_whitespace",
        ),
        ({"response_format": "json"}, "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}},
            "response_format.json_schema.schema",
        ),
        ({"response_format": FORMAT, "ignore_eos": True}, "ignore_eos"),
        (
            {"response_format": FORMAT, "tools": [_tool("f")], "tool_choice": "required"},
            "tool_choice",
        ),
        ({"structured_outputs": {"regex": "a"}, "tools": [_tool("f")]}, "structured_outputs"),
    ],
)
def test_contradictory_constraints_are_refused_by_name(tool_client, engine, fields, param):
    response = tool_client.post("/v1/chat/completions", {"messages": [USER]} | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param
    assert not engine.requests


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
        ({"response_format": FORMAT}, "response_format.json_schema.schema"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
    ],
)
@pytest.mark.parametrize(
    "end",
    [
        Rejected(kind="invalid", field="grammar", message="no"),
        Failed(message="no", field="grammar"),
    ],
)
def test_engine_refusals_name_fields_as_exactly_as_our_own(client, say, engine, fields, param, end):
    engine.script = lambda request: [end]
    response = client.post("/v1/completions", {"prompt": "Hi"} | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("faulty", "reason", "fields", "param"),
    [
        ("second", "a.b: no", {}, "tools[1].function.parameters.a.b"),
        (
            "second",
            "no",
            {"tool_choice": {"type": "function", "function": {"name": "second"}}},
            "tools[1].function.parameters",
        ),
        ("first", "a: no", {"response_format": FORMAT}, "tools[0].function.parameters.a"),
        (
            "integer",
            "a: no",
            {"response_format": FORMAT},
            "response_format.json_schema.schema.a",
        ),
        ("none", "too long", {}, "tools"),
    ],
)
def test_the_tool_whose_schema_is_at_fault_is_named(
    make_app, engine, client_of, tool_text, faulty, reason, fields, param
):
    def check(grammar):
        is_whole = grammar.kind == "structural_tag"
        return reason if is_whole or faulty in grammar.text else None

    client = client_of(make_app(engine, text=tool_text, check_grammar=check))
    tools = [
        {
            "type": "function",
            "function": {"name": name, "parameters": {"title": name}, "strict": True},
        }
        for name in ("first", "second")
    ]
    body = {"messages": [{"role": "user", "content": "Hi"}], "tools": tools} | fields
    response = client.post("/v1/chat/completions", body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["message"] == f"{param}: {reason.rpartition(': ')[2]}"
