"""The terminal's client against a server with scripted responses."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from openinfer import RemoteServerError
from openinfer.terminal._remote import RemoteModel
from openinfer.terminal._terminal_model import Ended
from openinfer_text import (
    Content,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

_MODELS = json.dumps({"data": [{"id": "first"}, {"id": "second"}]}).encode()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.keys.append(self.headers["authorization"])
        self._reply()

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.asked.append((self.path, json.loads(body)))
        self._reply()

    def _reply(self):
        status, chunks, is_cut = self.server.replies.get(self.path, (404, [b"{}"], False))
        self.send_response(status)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for chunk in chunks:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                self.wfile.flush()
            if is_cut:
                self.close_connection = True
                return
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.server.hung_up.set()

    def log_message(self, *_):
        pass


@pytest.fixture
def server() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.asked, server.keys = [], []
        server.hung_up = threading.Event()
        server.replies = {"/v1/models": (200, [_MODELS], False)}
        server.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def _event(**message):
    return b"data: " + json.dumps(message).encode() + b"\n\n"


def _texts(*texts):
    return [_event(choices=[{"text": text}]) for text in texts]


DONE = b"data: [DONE]\n\n"


def _complete(server, chunks, *, status=200, is_cut=False):
    server.replies["/v1/completions"] = (status, chunks, is_cut)
    return list(RemoteModel(server.url, "m").stream_completion("Hi", {"max_tokens": 3}))


def test_the_first_model_is_used_unless_one_is_named(server):
    assert RemoteModel(server.url).name == "first"
    assert RemoteModel(server.url, "other").name == "other"


def test_a_key_is_sent_and_asked_for(server):
    assert RemoteModel(server.url, api_key="k1").name == "first"
    assert RemoteModel(server.url, api_key="").name == "first"
    assert server.keys == ["Bearer k1", None]
    server.replies["/v1/models"] = (401, [b'{"error": {"message": "no"}}'], False)
    with pytest.raises(RemoteServerError, match=r"401: no \(--api-key or OPENINFER_API_KEY"):
        RemoteModel(server.url)
    for key in ("a b", "ä", "a\r\nb: c"):
        with pytest.raises(RemoteServerError, match="visible ASCII"):
            RemoteModel(server.url, api_key=key)


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_urls_come_in_several_forms(server, suffix):
    assert RemoteModel(server.url + suffix).name == "first"
    assert RemoteModel(server.url.removeprefix("http://") + suffix).name == "first"


def test_a_path_in_front_is_kept(server):
    server.replies["/proxy/v1/models"] = server.replies.pop("/v1/models")
    assert RemoteModel(server.url + "/proxy/v1").name == "first"


def test_a_completion_is_streamed(server):
    assert _complete(server, [*_texts("a", "", "b"), DONE]) == ["a", "", "b"]
    assert server.asked == [
        ("/v1/completions", {"model": "m", "prompt": "Hi", "stream": True, "max_tokens": 3})
    ]


def _chat(server, choices, tools=()):
    events = [_event(choices=[choice]) for choice in choices]
    usage = _event(choices=[], usage={})
    server.replies["/v1/chat/completions"] = (200, [*events, usage, DONE], False)
    return list(RemoteModel(server.url, "m").stream_chat(MESSAGES, {}, tools))


MESSAGES = [{"role": "user", "content": "ü"}]


def test_a_chat_is_streamed(server):
    deltas = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": None}, {}]
    choices = [{"delta": delta} for delta in deltas]
    choices[-1]["finish_reason"] = "length"
    assert _chat(server, choices) == [Content("a"), Ended("length")]
    assert server.asked[0][1] == {"model": "m", "messages": MESSAGES, "stream": True}


def test_reasoning_has_either_name(server):
    both = {"reasoning": "b", "reasoning_content": "b"}
    choices = [{"delta": {"reasoning_content": "a"}}, {"delta": both | {"content": "c"}}]
    assert _chat(server, choices) == [
        *(Reasoning("a"), Reasoning("b"), Content("c")),
        Ended("stop"),
    ]


def _call(index, arguments, **head):
    call = {"index": index, "function": {"arguments": arguments} | head}
    return call | ({"id": f"id{index}", "type": "function"} if head else {})


def test_calls_are_streamed_and_end_with_the_answer(server):
    tool = {"type": "function", "function": {"name": "f"}}
    choices = [
        {"delta": {"tool_calls": [_call(3, "", name="f")]}},
        {"delta": {"tool_calls": [_call(3, '{"a"'), _call(7, "{}", name="g")]}},
        {"delta": {"tool_calls": [_call(3, ": 1}")]}},
        {"delta": {}, "finish_reason": "tool_calls"},
    ]
    assert _chat(server, choices, [tool]) == [
        *(ToolCallStart(0, "id3", "f"), ToolCallArguments(0, '{"a"')),
        *(ToolCallStart(1, "id7", "g"), ToolCallArguments(1, "{}")),
        *(ToolCallArguments(0, ": 1}"), ToolCallEnd(0), ToolCallEnd(1)),
        Ended("tool_calls"),
    ]
    assert server.asked[0][1]["tools"] == [tool]


def test_calls_that_were_cut_off_have_no_end(server):
    choices = [{"delta": {"tool_calls": [_call(0, "{", name="f")]}, "finish_reason": "length"}]
    assert _chat(server, choices)[-1] == Ended("length")
    assert ToolCallEnd(0) not in _chat(server, choices)


@pytest.mark.parametrize(
    "choice",
    [3, {"delta": 3}, {"delta": {"tool_calls": 3}}, {"delta": {"tool_calls": [{"index": 0}]}}],
)
def test_a_choice_that_is_not_understood_is_a_sentence(server, choice):
    with pytest.raises(RemoteServerError, match="cannot be read"):
        _chat(server, [choice])


def test_events_may_be_cut_anywhere_and_comments_are_skipped(server):
    whole = b"".join([b": keep-alive\n\n", *_texts("ü", "b"), b"event: x\n\n", DONE])
    for size in (1, 7, 1000):
        cut = [whole[i : i + size] for i in range(0, len(whole), size)]
        assert _complete(server, cut) == ["ü", "b"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ({"message": "the engine is gone"}, "the engine is gone"),
        ("plain words", "plain words"),
        ({"code": 3}, "the server failed"),
    ],
)
def test_an_error_in_the_stream_is_raised_after_what_came_before(server, error, words):
    server.replies["/v1/completions"] = (200, [*_texts("a"), _event(error=error), DONE], False)
    pieces = RemoteModel(server.url, "m").stream_completion("Hi", {})
    assert next(pieces) == "a"
    with pytest.raises(RemoteServerError, match=words):
        next(pieces)


@pytest.mark.parametrize("payload", [b"data: {\n\n", b"data: [1]\n\n", b'data: {"choices": 3}\n\n'])
def test_an_event_that_is_not_understood_is_a_sentence(server, payload):
    with pytest.raises(RemoteServerError, match="cannot be read"):
        _complete(server, [payload])


@pytest.mark.parametrize(
    ("status", "content", "words"),
    [
        (400, b'{"error": {"message": "too hot"}}', "answered 400: too hot"),
        (503, b"try later", "answered 503: try later"),
        (500, b'{"error": null}', r'answered 500: \{"error": null\}'),
        (404, b"[]", r"answered 404: \[\]"),
    ],
)
def test_other_statuses_carry_the_servers_words(server, status, content, words):
    with pytest.raises(RemoteServerError, match=words):
        _complete(server, [content], status=status)


@pytest.mark.parametrize("is_cut", [True, False])
def test_an_answer_without_its_end_is_a_sentence(server, is_cut):
    with pytest.raises(RemoteServerError, match="too early"):
        _complete(server, _texts("a"), is_cut=is_cut)


@pytest.mark.parametrize("content", [b"{}", b"[]", b'{"data": []}', b"<html>", b'{"data": [1]}'])
def test_a_server_of_another_kind_is_a_sentence(server, content):
    server.replies["/v1/models"] = (200, [content], False)
    with pytest.raises(RemoteServerError, match="lists no models"):
        RemoteModel(server.url)


@pytest.mark.parametrize(
    ("reply", "left"),
    [
        ((200, [b'{"count": 30, "max_model_len": 100, "tokens": []}'], False), 70),
        ((200, [b'{"count": 130, "max_model_len": 100}'], False), -30),
        ((200, [b'{"count": 130}'], False), None),
        ((200, [b"[]"], False), None),
        ((404, [b"{}"], False), None),
    ],
)
def test_room_is_known_where_the_server_counts_tokens(server, reply, left):
    server.replies["/tokenize"] = reply
    message = {"role": "user", "content": "Hi"}
    assert RemoteModel(server.url, "m").num_tokens_left([message], [{"type": "x"}]) == left
    assert server.asked == [
        ("/tokenize", {"model": "m", "messages": [message], "tools": [{"type": "x"}]})
    ]


def test_leaving_a_stream_hangs_up(server):
    server.replies["/v1/completions"] = (200, _texts("a") * 200_000, False)
    pieces = RemoteModel(server.url, "m").stream_completion("Hi", {})
    assert next(pieces) == "a"
    pieces.close()
    assert server.hung_up.wait(10)


@pytest.mark.parametrize(
    "url", ["ftp://x", "http://", "http://x:port", "http://[::1", "", "x:99999"]
)
def test_what_is_no_url_is_a_sentence(url):
    with pytest.raises(RemoteServerError, match="give a URL"):
        RemoteModel(url)


def test_nobody_there_is_a_sentence():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(RemoteServerError, match="cannot connect"):
            RemoteModel(url)


def test_a_server_that_hangs_up_at_once_is_a_sentence():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up():
            sock, _ = listener.accept()
            with sock:
                sock.recv(1)

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(RemoteServerError, match="broke"):
            RemoteModel(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread.join()
