"""Unusual HTTP requests, over sockets."""

import json
import socket
import time

import pytest

from openinfer_contract import Finished
from openinfer_testing import wait_until

BODY = json.dumps({"prompt": "Hi", "max_tokens": 4}).encode()
OFFERS = {
    "java": b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n",
    "websocket": b"connection: upgrade\r\nUpgrade: websocket\r\n",
    "closing": b"connection: upgrade, close\r\nupgrade: h2c\r\n",
}


def request(headers, body=BODY, path=b"/v1/completions"):
    head = b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n"
    return head % (path, headers, len(body)) + body


def read_answer(sock):
    """Reads the head and the body of a response with a content length."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += (part := sock.recv(65536))
        assert part, data
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += (part := sock.recv(65536))
        assert part, data
    assert len(body) == length
    return head, json.loads(body)


@pytest.mark.parametrize("cut", [0, 1], ids=["whole", "in pieces"])
@pytest.mark.parametrize("offer", OFFERS.values(), ids=OFFERS)
def test_an_offer_of_another_protocol_is_ignored(start, app, engine, caplog, offer, cut):
    """Java's client offers HTTP/2 with every request; the request's body must still be read."""
    sent = request(offer + b"x-request-id: mine\r\n")
    count = 1 if b"close" in offer else 3
    with socket.create_connection(start(app).socket.getsockname(), timeout=5) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            for at in range(0, len(sent), 40 if cut else len(sent)):
                sock.sendall(sent[at : at + (40 if cut else len(sent))])
            head, answer = read_answer(sock)
            assert head.startswith(b"HTTP/1.1 200"), answer
            assert b"x-request-id: mine" in head
            assert answer["object"] == "text_completion"
        if count == 1:
            assert sock.recv(1) == b""
    assert len(engine.requests) == count
    assert not caplog.records


def test_bytes_after_an_upgrade_offer_are_read(start, app):
    """Many upgrade offers work with chunked bodies and when sent before the previous response."""
    offer = OFFERS["java"]
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n%btransfer-encoding: chunked\r\n\r\n" % offer
    )
    chunks = b"5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (BODY[:5], len(BODY) - 5, BODY[5:])
    get = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n%b\r\n" % offer
    with socket.create_connection(start(app).socket.getsockname(), timeout=5) as sock:
        sock.sendall(head + chunks)
        assert read_answer(sock)[1]["object"] == "text_completion"
        for sent in (get, request(offer)):
            sock.sendall(sent)
            assert read_answer(sock)[0].startswith(b"HTTP/1.1 200")
        sock.sendall(b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n%b\r\n" % offer)
        assert sock.recv(100).startswith(b"HTTP/1.1 400")


def test_many_offers_in_one_packet_are_many_requests(start, app):
    get = b"GET /version HTTP/1.1\r\nhost: x\r\n%b\r\n" % OFFERS["java"]
    count = 500
    with socket.create_connection(start(app).socket.getsockname(), timeout=20) as sock:
        sock.sendall(get * count)
        data = b""
        while data.count(b"HTTP/1.1 200") < count:
            data += (part := sock.recv(65536))
            assert part


def test_long_trailers_are_no_part_of_the_next_head(start, app):
    lines = [b"x-%d: " % number + b"y" * 4000 + b"\r\n" for number in range(10)]
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
    with socket.create_connection(start(app).socket.getsockname(), timeout=5) as sock:
        for _ in range(2):
            sock.sendall(head + b"\r\n%x\r\n%b\r\n0\r\n" % (len(BODY), BODY))
            for line in lines:
                sock.sendall(line)
                time.sleep(0.005)
            sock.sendall(b"\r\n")
            assert read_answer(sock)[0].startswith(b"HTTP/1.1 200")
        sock.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\n" + b"".join(lines[:7]))
        time.sleep(0.05)
        sock.sendall(b"\r\n")
        assert read_answer(sock)[0].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("fields", [{}, {"stream": True}], ids=["whole", "stream"])
def test_a_body_that_has_arrived_has_no_timeout(start, make_app, fakes, fields):
    engine = fakes.FakeEngine()
    server = start(make_app(engine, body_timeout_s=0.05))
    with socket.create_connection(server.socket.getsockname(), timeout=5) as sock:
        sock.sendall(request(b"", json.dumps({"prompt": "Hi"} | fields).encode()))
        wait_until(lambda: engine.live, timeout_s=5)
        time.sleep(0.2)
        server.call(engine.emit, "late")
        server.call(engine.emit, Finished(reason="length"))
        data = b""
        while b'"finish_reason":"length"' not in data:
            data += (part := sock.recv(65536))
            assert part, data
    assert data.startswith(b"HTTP/1.1 200")
