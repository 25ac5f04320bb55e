"""Templates in requests: refused unless the operator allows them, and rendered apart from the
server."""

import asyncio
import threading

import httpx
import pytest

from openinfer_contract import Finished, unpack_ids
from openinfer_text import TextModel

SOURCE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ mood }}"
CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
TOOLS = [{"type": "function", "function": {"name": "f"}}]
PATHS = ["/v1/chat/completions", "/v1/chat/completions/render", "/tokenize"]


@pytest.fixture
def trusting(checkpoint, make_app, engine, client_of):
    text = TextModel.from_folder(checkpoint)
    yield client_of(make_app(engine, text=text, trust_request_chat_template=True))
    text.close()


def _error(response):
    error = response.json()["error"]
    return response.status_code, error["param"], error["message"]


@pytest.mark.parametrize("path", PATHS)
def test_request_templates_need_the_operators_permission(client, engine, path):
    status, param, message = _error(client.post(path, CHAT | {"chat_template": SOURCE}))
    assert (status, param) == (400, "chat_template")
    assert "--trust-request-chat-template" in message
    hidden = client.post(path, CHAT | {"chat_template_kwargs": {"chat_template": SOURCE}})
    assert _error(hidden)[:2] == (400, "chat_template_kwargs.chat_template")
    assert not engine.requests


@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/responses", {"input": "Hi"}), ("/v1/messages", {"max_tokens": 1, "model": "tiny"})],
)
def test_protocols_without_chat_templates_refuse_the_field_by_name(trusting, engine, path, body):
    response = trusting.post(path, CHAT | body | {"chat_template": SOURCE})
    assert response.status_code == 400
    assert "chat_template is not supported" in response.json()["error"]["message"]
    assert not engine.requests


def test_a_trusted_template_makes_the_prompt(trusting, engine, text):
    engine.script = lambda request: ["Yes", Finished(reason="stop")]
    fields = CHAT | {"chat_template": SOURCE, "chat_template_kwargs": {"mood": "!"}}
    assert trusting.post(PATHS[0], fields).status_code == 200
    (request,) = engine.requests
    assert text.decode(unpack_ids(request.prompt_token_ids)) == "<user>Hi!"
    assert trusting.post(PATHS[1], fields).json()["prompt"] == "<user>Hi!"
    assert trusting.post(PATHS[2], fields).json()["count"] == len("<user>Hi!")


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"chat_template": "\n{% if %}"}, "chat_template", "line 2: Expected"),
        ({"chat_template": "{{ raise_exception('no') }}"}, "chat_template", "line 1: no"),
        ({"chat_template": ""}, "chat_template", "at least 1"),
        ({"chat_template": "x" * 65537}, "chat_template", "at most 65536"),
        ({"chat_template": 1}, "chat_template", "string"),
        ({"chat_template": SOURCE, "chat_template_kwargs": {"tools": 1}},
         "chat_template_kwargs.tools", "of its own"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", PATHS)
def test_a_wrong_template_is_explained(trusting, engine, path, fields, param, words):
    status, named, message = _error(trusting.post(path, CHAT | fields))
    assert (status, named) == (400, param)
    assert words in message
    assert not engine.requests


def test_tools_need_a_place_in_the_template_of_the_request(checkpoint, make_app, engine, client_of):
    """The checkpoint's own template does not matter."""
    text = TextModel.from_folder(checkpoint, tool_parser="hermes")
    client = client_of(make_app(engine, text=text, trust_request_chat_template=True))
    fields = CHAT | {"tools": TOOLS}
    assert _error(client.post(PATHS[1], fields))[:2] == (400, "tools")
    assert _error(client.post(PATHS[1], fields | {"chat_template": SOURCE}))[:2] == (400, "tools")
    taken = client.post(PATHS[1], fields | {"chat_template": "{{ tools[0].function.name }}"})
    assert taken.json()["prompt"] == "f"
    text.close()


def test_request_templates_wait_in_a_bounded_queue_of_their_own(
    checkpoint, make_app, engine, fakes, monkeypatch
):
    text, gate = TextModel.from_folder(checkpoint), threading.Event()
    encode_chat = text.encode_chat

    def gated(*arguments, chat_template, **options):
        if chat_template is not None:
            gate.wait(30)
        return encode_chat(*arguments, chat_template=chat_template, **options)

    async def post_all():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            foreign = CHAT | {"chat_template": SOURCE}
            calls = [asyncio.ensure_future(client.post(PATHS[1], json=foreign)) for _ in range(20)]
            try:
                await fakes.wait_for(lambda: sum(call.done() for call in calls) == 4)
                long = {"messages": [{"role": "user", "content": "Hi " * 9000}]}
                async with asyncio.timeout(10):
                    assert (await client.post(PATHS[1], json=long)).status_code == 200
            finally:
                gate.set()
            return await asyncio.gather(*calls)

    monkeypatch.setattr(text, "encode_chat", gated)
    app = make_app(engine, text=text, trust_request_chat_template=True, num_text_threads=1)
    answers = asyncio.run(post_all())
    refused = [answer for answer in answers if answer.status_code == 503]
    assert len(refused) == 4
    assert all("retry-after" in answer.headers for answer in refused)
    assert sum(answer.status_code == 200 for answer in answers) == 16
    text.close()
