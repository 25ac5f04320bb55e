"""The description of the API: complete, correct, and fuzzed."""

import os

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

EXAMPLES = int(os.environ.get("OPENINFER_FUZZ_EXAMPLES", "6"))
"""Valid and invalid requests of each kind, for each route."""
COMMANDS = ("get_load", "reset_prefix_cache", "pause", "resume")
BODIES = [
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/chat/completions/render",
    "/tokenize",
    "/detokenize",
    "/abort_requests",
]


@pytest.fixture
def served(start, make_app, fakes, tool_text):
    engine = fakes.FakeEngine(commands=COMMANDS)
    engine.script = fakes.hello
    return start(make_app(engine, text=tool_text)).url


@pytest.mark.long
@pytest.mark.parametrize("path", BODIES)
def test_no_described_body_makes_a_5xx(served, path):
    schema = schemathesis.openapi.from_url(f"{served}/openapi.json")
    operation = schema[path]["POST"]
    with requests.Session() as session:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(
                max_examples=EXAMPLES,
                deadline=None,
                database=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def send(case):
                response = case.call(base_url=served, session=session, timeout=30)
                assert response.status_code in (200, 400, 404), response.text

            send()


def test_every_field_has_a_description(client):
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    assert len(schemas) > 10
    silent = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        if name != "Error"
        for field, described in schema["properties"].items()
        if not described.get("description")
    ]
    assert silent == []


def test_keys_are_described(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert "security" not in paths["/health"]["get"]
    assert paths["/v1/messages"]["post"]["security"]


def test_the_page_has_every_route_and_loads_nothing(client):
    response = client.get("/docs")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method in methods:
            assert f"<b>{method.upper()} {path}</b>" in response.text
    assert "http" not in response.text.replace("application/json", "")
    for word in ("top_k", "stop_sequences", "budget_tokens", "max_tokens*"):
        assert f"<code>{word}</code>" in response.text


def test_versions_are_escaped(make_app, engine, client_of):
    page = client_of(make_app(engine, version="<b>")).get("/docs").text
    assert "<h1>OpenInfer &lt;b&gt;</h1>" in page
