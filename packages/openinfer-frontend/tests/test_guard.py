"""Keys, origins and limits."""

import asyncio
import json
import re
import socket
import ssl
import threading
import time

import httpx
import pytest
import trustme

from openinfer_contract import Failed, Finished, Rejected
from openinfer_frontend import Tls, TlsError
from openinfer_frontend.errors import ApiError
from openinfer_frontend.http import _connection
from openinfer_frontend.routes import _token_routes

MESSAGES = [{"role": "user", "content": "Hi"}]
USER = ("GET", "/v1/models", None)
ADMIN = ("POST", "/reset_prefix_cache", None)
OPEN = ("GET", "/health", None)


@pytest.fixture
def ask(engine, make_app, client_of):
    def send(route, key=None, header="authorization", **settings):
        method, path, body = route
        scheme = b"Bearer " if header == "authorization" else b""
        headers = {} if key is None else {header: scheme + key.encode("latin-1")}
        client = client_of(make_app(engine, **settings))
        return client.request(method, path, json=body, headers=headers)

    return send


@pytest.mark.parametrize(
    ("settings", "key", "statuses"),
    [
        ({}, None, (200, 200, 200)),
        ({"api_keys": ("a", "b")}, None, (200, 401, 401)),
        ({"api_keys": ("a", "b")}, "c", (200, 401, 401)),
        ({"api_keys": ("a", "b")}, "b", (200, 200, 200)),
        ({"admin_api_key": "x"}, None, (200, 200, 401)),
        ({"admin_api_key": "x"}, "x", (200, 200, 200)),
        ({"api_keys": ("a",), "admin_api_key": "x"}, "a", (200, 200, 403)),
        ({"api_keys": ("a",), "admin_api_key": "x"}, "x", (200, 200, 200)),
        ({"api_keys": ("a",), "admin_api_key": "x"}, "ä", (200, 401, 401)),
    ],
)
@pytest.mark.parametrize("header", ["authorization", "x-api-key"])
def test_keys_open_routes(ask, settings, key, statuses, header):
    got = tuple(ask(route, key, header, **settings).status_code for route in (OPEN, USER, ADMIN))
    assert got == statuses


@pytest.mark.parametrize(
    ("route", "settings", "key", "words"),
    [
        (USER, {"api_keys": ("a",)}, None, "an API key: Authorization: Bearer KEY, or x-api-key"),
        (ADMIN, {"api_keys": ("a",)}, None, "an API key: "),
        (ADMIN, {"admin_api_key": "x"}, None, "the admin key: "),
        (ADMIN, {"admin_api_key": "x"}, "y", "not valid; this route needs the admin key"),
        (USER, {"api_keys": ("a",), "admin_api_key": "x"}, "y", "not valid; .* an API key"),
    ],
)
def test_a_refusal_says_which_key_and_how_to_send_it(ask, route, settings, key, words):
    error = ask(route, key, **settings).json()["error"]
    assert re.search(words, error["message"])


def test_a_refusal_costs_no_body_and_has_the_protocols_shape(make_app, engine):
    """The request is refused without reading its body."""

    async def main(path):
        sent = []

        async def receive():
            pytest.fail("the body was read")

        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "headers": []}
        await make_app(engine, api_keys=("k",))(scope, receive, send)
        return sent[0], json.loads(sent[1]["body"])

    head, body = asyncio.run(main("/v1/chat/completions"))
    assert head["status"] == 401
    assert (b"www-authenticate", b"Bearer") in head["headers"]
    assert body["error"]["type"] == "AuthenticationError"
    _, body = asyncio.run(main("/v1/messages"))
    assert body["error"]["type"] == "authentication_error"


def test_no_origin_is_allowed_by_default(client):
    response = client.request("GET", "/v1/models", headers={"origin": "https://a.example"})
    assert not [name for name in response.headers if name.startswith("access-control")]
    headers = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert client.request("OPTIONS", "/v1/models", headers=headers).status_code == 405


@pytest.mark.parametrize(
    ("allowed", "origin", "answered"),
    [
        (("https://a.example",), "https://a.example", "https://a.example"),
        (("https://a.example",), "https://b.example", None),
        (("*",), "https://b.example", "*"),
    ],
)
def test_allowed_origins(engine, make_app, client_of, allowed, origin, answered):
    client = client_of(make_app(engine, allowed_origins=allowed, api_keys=("k",)))
    asked = {
        "origin": origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    preflight = client.request("OPTIONS", "/v1/completions", headers=asked)
    assert preflight.status_code == 204, "no key is asked for: browsers send none"
    assert preflight.headers.get("access-control-allow-origin") == answered
    assert preflight.headers["access-control-allow-headers"] == "authorization,content-type"
    headers = {"origin": origin, "authorization": "Bearer k"}
    body = {"prompt": "Hi", "stream": True}
    for response in (
        client.request("POST", "/v1/completions", json=body, headers=headers),
        client.request("GET", "/nowhere", headers=headers),
    ):
        assert response.headers.get("access-control-allow-origin") == answered
        assert response.headers["vary"] == "origin"


def test_requests_beyond_the_limit_are_refused(make_app, fakes):
    engine = fakes.FakeEngine()
    app = make_app(engine, max_in_flight=1)

    async def main():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            first = asyncio.create_task(client.post("/v1/completions", json={"prompt": "a"}))
            await fakes.wait_for(lambda: engine.live)
            second = await client.post("/v1/completions", json={"prompt": "b"})
            engine.emit(Finished(reason="length"))
            return await first, second

    first, second = asyncio.run(main())
    assert (first.status_code, second.status_code) == (200, 503)
    assert second.headers["retry-after"] == "1"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "b"}),
        ("/detokenize", {"tokens": [98]}),
        ("/v1/chat/completions/render", {"messages": MESSAGES}),
        ("/v1/messages/count_tokens", {"model": "tiny", "messages": MESSAGES}),
    ],
)
def test_tokenizing_counts_as_well(make_app, fakes, monkeypatch, path, body):
    """Tokenize requests and generating requests count towards the same limit."""
    engine, go_on = fakes.FakeEngine(), threading.Event()
    app = make_app(engine, max_in_flight=1, max_inline_bytes=0)
    model = app._backend.text.model
    threads = []

    def waiting(function):
        def wait(*arguments, **options):
            threads.append(threading.current_thread())
            assert go_on.wait(5)
            return function(*arguments, **options)

        return wait

    for name in ("encode", "encode_chat", "decode"):
        monkeypatch.setattr(model, name, waiting(getattr(model, name)))
    json_threads = []
    original = _token_routes.to_json_in_slices
    monkeypatch.setattr(
        _token_routes,
        "to_json_in_slices",
        lambda value: json_threads.append(threading.current_thread()) or original(value),
    )

    async def main():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            first = asyncio.create_task(client.post(path, json=body))
            await fakes.wait_for(lambda: threads)
            second = await client.post(path, json=body)
            go_on.set()
            return await first, second

    first, second = asyncio.run(main())
    assert (first.status_code, second.status_code) == (200, 503)
    assert threading.main_thread() not in threads + json_threads
    assert app.num_in_flight == 0
    assert json_threads or path.endswith("count_tokens")


def test_the_total_size_of_bodies_is_limited(engine, make_app, client_of):
    app = make_app(engine, max_pending_body_bytes=1000, max_body_bytes=5000)
    client = client_of(app)
    for _ in range(3):
        assert client.post("/v1/completions", {"prompt": "x" * 1500}).status_code == 503
        assert client.post("/tokenize", {"prompt": "x" * 800}).status_code == 200
        assert client.post("/tokenize", {"prompt": ["x" * 800]}).status_code == 400
    assert app._bodies.num_bytes == 0


def test_errors_show_no_paths(client, engine):
    engine.script = lambda _: [Failed(message="cannot map /srv/models/w.bin at 0x7f12ab34cd56")]
    error = client.post("/v1/completions", {"prompt": "Hi"}).json()["error"]
    assert error["message"] == "cannot map (path) at (address)"
    engine.dead = "no engine at unix:/tmp/openinfer-1/engine.sock or 10.0.0.7:4444"
    error = client.post("/v1/completions", {"prompt": "Hi"}).json()["error"]
    assert error["message"] == "no engine at (path) or (address)"


@pytest.mark.parametrize("sends", [b"", b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"])
def test_a_head_that_does_not_arrive_ends_the_connection(start, app, monkeypatch, sends):
    monkeypatch.setattr(_connection, "HEAD_TIMEOUT_S", 0.1)
    with socket.create_connection(start(app).socket.getsockname(), timeout=5) as sock:
        sock.sendall(sends)
        assert sock.recv(100) == b""


@pytest.mark.parametrize("is_early", [False, True])
def test_a_next_head_that_has_begun_has_a_timeout_too(start, app, monkeypatch, is_early):
    monkeypatch.setattr(_connection, "HEAD_TIMEOUT_S", 0.1)
    first, part = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"GET /health HT"
    with socket.create_connection(start(app).socket.getsockname(), timeout=5) as sock:
        sock.sendall(first + part * is_early)
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        sock.sendall(part * (not is_early))
        assert sock.recv(100) == b""


LINES = b"".join(b"x-%d: " % i + b"y" * 4000 + b"\r\n" for i in range(100))


@pytest.mark.parametrize("before", [b"", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"])
@pytest.mark.parametrize("end", [b"", b"\r\n"])
def test_a_head_that_is_too_long_is_refused(start, app, before, end):
    with socket.create_connection(start(app).socket.getsockname(), timeout=5) as sock:
        if before:
            sock.sendall(before)
            assert _read_head(sock).startswith(b"HTTP/1.1 200")
        sock.sendall(b"GET /health HTTP/1.1\r\n")
        sock.sendall(LINES + end)
        answer = b""
        while part := sock.recv(4096):
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"HTTP/1.1 431" in head
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("RequestHeaderFieldsTooLargeError", 431)


def test_a_long_head_during_a_response_closes_the_connection(start, app, engine):
    engine.script = None
    body = b'{"prompt":"Hi"}'
    first = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_connection(start(app).socket.getsockname(), timeout=5) as sock:
        sock.sendall(first + body)
        while not engine.live:
            time.sleep(0.01)
        try:
            sock.sendall(b"GET /health HTTP/1.1\r\n" + LINES)
            ending = sock.recv(1)
        except ConnectionError:
            ending = b""
        assert ending == b""


def test_a_slow_request_is_no_slow_head(start, app, engine, monkeypatch):
    monkeypatch.setattr(_connection, "HEAD_TIMEOUT_S", 0.2)
    engine.script = None
    server = start(app)

    def answer_late():
        while not engine.live:
            time.sleep(0.01)
        time.sleep(0.3)
        server.call(lambda: engine.emit(Finished(reason="length")))

    thread = threading.Thread(target=answer_late)
    thread.start()
    with httpx.Client(base_url=server.url, timeout=30) as client:
        assert client.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200
        assert client.get("/health").status_code == 200
    thread.join()


CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


def _read_head(sock):
    """Reads the head of a response of known length, and its body, which precedes the next head."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += sock.recv(4096)
    head, _, body = answer.partition(b"\r\n\r\n")
    length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
    while len(body) < length:
        body += sock.recv(4096)
    return head


@pytest.mark.parametrize("line", [b"x: " + b"y" * 1000 + b"\r\n", b"z" * 1000])
@pytest.mark.parametrize("settings", [{"api_keys": ("k",)}, {}])
def test_trailers_without_end_end_the_connection(start, make_app, engine, settings, line):
    server = start(make_app(engine, **settings))
    with socket.create_connection(server.socket.getsockname(), timeout=5) as sock:
        sock.sendall(CHUNKED)
        if settings:
            assert _read_head(sock).startswith(b"HTTP/1.1 401")
        sock.sendall(b"0\r\n" + (b"" if line[1:2] == b":" else b"x: "))
        with pytest.raises(ConnectionError):
            sock.sendall(line * 20_000)


def test_trailers_are_no_headers(start, app, engine):
    body = b'{"prompt":"Hi"}'
    chunks = b"%x\r\n%b\r\n0\r\nx-request-id: theirs\r\n\r\n" % (len(body), body)
    with socket.create_connection(start(app).socket.getsockname(), timeout=5) as sock:
        for _ in range(2):
            sock.sendall(CHUNKED + chunks)
            head = _read_head(sock)
            assert head.startswith(b"HTTP/1.1 200")
            assert b"theirs" not in head


@pytest.mark.parametrize("end", [b"", b"0\r\n"])
def test_an_unread_body_has_a_timeout(start, make_app, engine, monkeypatch, end):
    monkeypatch.setattr(_connection, "UNREAD_TIMEOUT_S", 0.3)
    server = start(make_app(engine, api_keys=("k",)))
    with socket.create_connection(server.socket.getsockname(), timeout=2) as sock:
        sock.sendall(CHUNKED)
        assert _read_head(sock).startswith(b"HTTP/1.1 401")
        deadline = time.monotonic() + 5
        sock.sendall(end)
        sock.settimeout(0.05)
        while time.monotonic() < deadline:
            try:
                sock.sendall(b"x: y\r\n" if end else b"1\r\na\r\n")
                if sock.recv(1000) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
        pytest.fail("the connection is still there")


@pytest.mark.parametrize("after", [b"0\r\n\r\n", b"0\r\n\r\n\r\n"])
def test_a_connection_idles_no_longer_for_an_unread_body(
    start, make_app, engine, monkeypatch, after
):
    seconds = property(lambda _: 0.3, lambda _, __: None)
    monkeypatch.setattr(_connection.Connection, "timeout_keep_alive", seconds, raising=False)
    server = start(make_app(engine, api_keys=("k",)))
    with socket.create_connection(server.socket.getsockname(), timeout=3) as sock:
        sock.sendall(CHUNKED)
        _read_head(sock)
        sock.sendall(after + b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        answers = b""
        while part := sock.recv(4096):
            answers += part
        assert b"HTTP/1.1 200" in answers
    with socket.create_connection(server.socket.getsockname(), timeout=3) as sock:
        sock.sendall(CHUNKED)
        _read_head(sock)
        sock.sendall(after)
        while sock.recv(4096):
            pass


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    server = authority.issue_cert("127.0.0.1")
    server.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    client = authority.issue_cert("client@example.org")
    client.private_key_and_cert_chain_pem.write_to_path(folder / "client.pem")
    return folder


def test_tls(start, app, certificates):
    tls = Tls(certfile=str(certificates / "server.pem"))
    url = start(app, tls=tls).url.replace("http", "https")
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    with httpx.Client(base_url=url, verify=context) as client:
        assert client.post("/v1/completions", json={"prompt": "Hi"}).status_code == 200
        body = {"prompt": "Hi", "stream": True}
        assert "[DONE]" in client.post("/v1/completions", json=body).text


def test_tls_with_certificates_of_clients(start, app, certificates):
    authority = str(certificates / "ca.pem")
    tls = Tls(certfile=str(certificates / "server.pem"), ca_certs=authority)
    url = start(app, tls=tls).url.replace("http", "https")
    context = ssl.create_default_context(cafile=authority)
    with httpx.Client(base_url=url, verify=context) as client, pytest.raises(httpx.HTTPError):
        client.get("/health")
    context.load_cert_chain(str(certificates / "client.pem"))
    with httpx.Client(base_url=url, verify=context) as client:
        assert client.get("/health").status_code == 200


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"certfile": "none.pem"}, "none.pem"),
        ({"certfile": "server.pem", "keyfile": "ca.pem"}, "server.pem"),
        ({"certfile": "server.pem", "ca_certs": "none.pem"}, "none.pem"),
    ],
)
def test_certificates_that_cannot_be_used(certificates, fields, word):
    with pytest.raises(TlsError, match=word):
        Tls(**{name: str(certificates / file) for name, file in fields.items()})


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("cannot read /secret", "cannot read (path)"),
        ("cannot read '/secret': gone", "cannot read '(path)': gone"),
        ("no /a/b/ at 10.0.0.1:80", "no (path) at (address)"),
        ("#/$defs/x and </tool_call> and/or 3 / 4", "#/$defs/x and </tool_call> and/or 3 / 4"),
    ],
)
def test_engine_messages_show_no_paths(client, engine, message, shown):
    assert ApiError.from_engine(500, message).message == shown
    rejected = Rejected(kind="invalid", message=message, field="grammar")
    assert ApiError.from_end(rejected).message == shown
    engine.script = lambda _: [rejected]
    error = client.post("/v1/completions", {"prompt": "Hi"}).json()["error"]
    assert error["message"] == shown
