"""Streams: golden bytes, held-back text, stops, disconnects, failures, slow readers."""

import asyncio
import json
from types import SimpleNamespace

import pytest

from openinfer_contract import Failed, Finished, Rejected


class Peer:
    """One request at ASGI level; the test reads what the application sends as it comes."""

    def __init__(self, app, path, body, headers=()):
        self.sent = []
        self.gone = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self._body = json.dumps(body).encode()
        self._is_read = False
        scope = {"type": "http", "method": "POST", "path": path, "headers": list(headers)}
        self.task = asyncio.create_task(app(scope, self._receive, lambda m: self._send(m)))

    async def _receive(self):
        if not self._is_read:
            self._is_read = True
            return {"type": "http.request", "body": self._body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        await self.writable.wait()
        self.sent.append(message)

    @property
    def bodies(self):
        return [m["body"] for m in self.sent if m["type"] == "http.response.body"]

    @property
    def status(self):
        return self.sent[0]["status"] if self.sent else None


@pytest.fixture
def rig(fakes, make_app):
    """Runs a test in an event loop with an engine that is driven by hand."""

    def run(test, **settings):
        async def main():
            engine = fakes.FakeEngine()
            app = make_app(engine, **settings)

            def post(body, path="/v1/completions"):
                return Peer(app, path, body)

            await test(SimpleNamespace(engine=engine, app=app, post=post, wait_for=fakes.wait_for))

        asyncio.run(main())

    return run


def test_golden_completion(rig, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1700000000.0)

    async def test(r):
        peer = Peer(
            r.app,
            "/v1/completions",
            {"prompt": "Hi", "stream": True, "stream_options": {"include_usage": True}},
            [(b"x-request-id", b"abc")],
        )
        await r.wait_for(lambda: r.engine.live)
        for entry in ('a"\n', "é", [257]):
            r.engine.emit(entry)
            await r.wait_for(lambda: not r.engine.live or len(peer.bodies) == r.seen + 1)
            r.seen += 1
        r.engine.emit(Finished(reason="stop", stop_token_id=257))
        await peer.task
        assert peer.sent[0]["headers"][-1] == (b"x-request-id", b"abc")
        head = (
            b'data: {"id":"cmpl-abc","object":"text_completion","created":1700000000,'
            b'"model":"tiny","choices":['
        )
        plain = b',"logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
        assert peer.bodies == [
            head + b'{"index":0,"text":"a\\"\\n"' + plain,
            head + b'{"index":0,"text":"\xc3\xa9"' + plain,
            head + b'{"index":0,"text":""' + plain,
            head
            + b'{"index":0,"text":"","logprobs":null,"finish_reason":"stop","stop_reason":null}'
            + b"]}\n\n"
            + head
            + b'],"usage":{"prompt_tokens":2,"completion_tokens":6,"total_tokens":8,'
            + b'"prompt_tokens_details":{"cached_tokens":0}}}\n\n'
            + b"data: [DONE]\n\n",
        ]

    async def with_counter(r):
        r.seen = 0
        await test(r)

    rig(with_counter)


def test_golden_chat(rig, monkeypatch):
    monkeypatch.setattr("time.time", lambda: 1700000000.0)

    async def test(r):
        body = {"messages": [{"role": "user", "content": "Hi"}], "stream": True}
        peer = Peer(r.app, "/v1/chat/completions", body, [(b"x-request-id", b"abc")])
        await r.wait_for(lambda: r.engine.live)
        r.engine.emit("Hey")
        await r.wait_for(lambda: peer.bodies)
        r.engine.emit(Finished(reason="length"))
        await peer.task
        head = (
            b'data: {"id":"chatcmpl-abc","object":"chat.completion.chunk","created":1700000000,'
            b'"model":"tiny","choices":[{"index":0,"delta":'
        )
        assert peer.bodies == [
            head
            + b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
            + head
            + b'{"content":"Hey"},"logprobs":null,"finish_reason":null}]}\n\n',
            head
            + b'{"content":""},"logprobs":null,"finish_reason":"length","stop_reason":null}]}\n\n'
            + b"data: [DONE]\n\n",
        ]

    rig(test)


def texts(peer):
    lines = b"".join(peer.bodies).decode().split("\n\n")[:-1]
    events = [json.loads(line[6:]) for line in lines if line != "data: [DONE]"]
    return [event["choices"][0]["text"] for event in events if "choices" in event]


def test_every_event_is_sent_even_while_bytes_are_held_back(rig):
    async def test(r):
        peer = r.post({"prompt": "Hi", "stream": True})
        await r.wait_for(lambda: r.engine.live)
        for number, byte in enumerate("€".encode(), 1):
            r.engine.emit([byte])
            await r.wait_for(lambda number=number: len(peer.bodies) == number)
        assert texts(peer) == ["", "", "€"]
        peer.gone.set()
        await peer.task

    rig(test)


def test_nothing_is_sent_before_the_first_token(rig, fakes):
    async def test(r):
        peer = r.post({"prompt": "Hi", "stream": True})
        await r.wait_for(lambda: r.engine.live)
        r.engine.emit(fakes.scheduled(2))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not peer.sent
        r.engine.emit(Failed(message="the step failed"))
        await peer.task
        assert peer.status == 500

    rig(test)


def test_a_failure_that_is_the_requests_own_is_a_400_with_its_field(rig, fakes):
    """Clients retry a 500; this request would fail in the same way again."""

    async def test(r):
        body = {"prompt": "Hi", "structured_outputs": {"regex": "a+"}, "min_tokens": 9}
        peer = r.post(body | {"max_tokens": 20})
        await r.wait_for(lambda: r.engine.live)
        r.engine.emit(Failed(message="min_tokens rule out every token", field="grammar"))
        await peer.task
        assert peer.status == 400
        error = json.loads(peer.bodies[0])["error"]
        assert error["param"] == "structured_outputs.regex"
        assert "min_tokens" in error["message"]

    rig(test)


_NOTHING_LEFT = Failed(
    message="no token is left to draw: every one is ruled out by allowed_token_ids and bad_words",
    field="sampling.allowed_token_ids",
)


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_request_that_bans_every_token_gets_the_fields_at_fault(rig, is_stream):
    async def test(r):
        body = {"prompt": "Hi", "allowed_token_ids": [5, 6], "bad_words": ["a"]}
        peer = r.post(body | {"stream": is_stream})
        await r.wait_for(lambda: r.engine.live)
        r.engine.emit(_NOTHING_LEFT)
        await peer.task
        assert peer.status == 400
        error = json.loads(peer.bodies[0])["error"]
        assert (error["param"], error["code"]) == ("allowed_token_ids", 400)
        assert error["message"] == f"allowed_token_ids: {_NOTHING_LEFT.message}"

    rig(test)


def test_a_stream_that_comes_to_ban_every_token_ends_with_the_error(rig):
    async def test(r):
        body = {"prompt": "Hi", "allowed_token_ids": [5, 6], "bad_words": ["a"], "stream": True}
        peer = r.post(body)
        await r.wait_for(lambda: r.engine.live)
        r.engine.emit([65])
        await r.wait_for(lambda: peer.bodies)
        r.engine.emit(_NOTHING_LEFT)
        await peer.task
        assert peer.status == 200
        error = json.loads(b"".join(peer.bodies).decode().split("data: ")[2])["error"]
        assert (error["param"], error["code"]) == ("allowed_token_ids", 400)

    rig(test)


@pytest.mark.parametrize(("field", "status"), [("grammar", 400), ("deadline", 408), ("", 500)])
def test_failures_show_no_paths_of_the_machine(rig, field, status):
    async def test(r):
        peer = r.post({"prompt": "Hi", "structured_outputs": {"regex": "a+"}})
        await r.wait_for(lambda: r.engine.live)
        r.engine.emit(Failed(message="cannot open /srv/models/x.bin at 10.1.2.3:80", field=field))
        await peer.task
        assert peer.status == status
        message = json.loads(peer.bodies[0])["error"]["message"]
        assert message.endswith("cannot open (path) at (address)")

    rig(test)


def test_a_stop_string_ends_the_choice_and_the_sequence(rig):
    async def test(r):
        peer = r.post({"prompt": "Hi", "stop": ["END", "never"], "max_tokens": 99})
        await r.wait_for(lambda: r.engine.live)
        r.engine.emit("one E")
        r.engine.emit("ND two")
        await peer.task
        body = json.loads(peer.bodies[0])
        assert body["choices"][0]["text"] == "one "
        assert body["choices"][0]["finish_reason"] == "stop"
        assert body["choices"][0]["stop_reason"] == "END"
        assert body["usage"]["completion_tokens"] == len("one END")
        assert r.engine.aborted == [body["id"]]

    rig(test)


def test_text_held_for_a_stop_string_appears_at_the_end(rig):
    async def test(r):
        peer = r.post({"prompt": "Hi", "stop": "END", "stream": True})
        await r.wait_for(lambda: r.engine.live)
        r.engine.emit("one EN")
        await r.wait_for(lambda: peer.bodies)
        r.engine.emit(Finished(reason="length"))
        await peer.task
        assert texts(peer) == ["one ", "EN"]
        assert not r.engine.aborted

    rig(test)


def test_a_disconnect_aborts(rig):
    async def test(r):
        for body in ({"prompt": ["Hi", "Ho"], "n": 2}, {"prompt": "Hi", "stream": True}):
            peer = r.post(body)
            await r.wait_for(lambda: r.engine.live)
            ids = r.engine.live
            r.engine.emit("x", ids[0])
            peer.gone.set()
            await peer.task
            assert r.engine.aborted == ids
            assert not r.engine.live
            r.engine.aborted.clear()
        assert r.app.num_in_flight == 0

    rig(test)


def test_one_rejection_ends_the_whole_request(rig):
    async def test(r):
        peer = r.post({"prompt": ["a", "b"], "stream": True})
        await r.wait_for(lambda: len(r.engine.live) == 2)
        first, second = r.engine.live
        rejected = Rejected(kind="overloaded", message="the queue is full", retry_after_s=3.0)
        r.engine.emit(rejected, second)
        await peer.task
        assert peer.status == 503
        assert (b"retry-after", b"3") in peer.sent[0]["headers"]
        assert r.engine.aborted == [first]

    rig(test)


def test_a_failure_in_the_middle_is_the_last_event(rig):
    async def test(r):
        peer = r.post({"prompt": "Hi", "stream": True})
        await r.wait_for(lambda: r.engine.live)
        r.engine.emit("x")
        await r.wait_for(lambda: peer.bodies)
        r.engine.emit(Failed(message="the engine died", is_retryable=True))
        await peer.task
        event, done, rest = peer.bodies[-1].decode().split("\n\n")
        assert json.loads(event[6:])["error"]["code"] == 503
        assert (done, rest) == ("data: [DONE]", "")

    rig(test, resume_timeout_s=0)


def test_a_slow_reader_gets_unread_events_merged(rig):
    async def test(r):
        peer = r.post({"prompt": "Hi", "stream": True})
        await r.wait_for(lambda: r.engine.live)
        r.engine.emit("a")
        await r.wait_for(lambda: peer.bodies)
        peer.writable.clear()
        for _ in range(100):
            r.engine.emit("b")
            await asyncio.sleep(0)
        peer.writable.set()
        await r.wait_for(lambda: sum(map(len, texts(peer))) == 101)
        assert len(peer.bodies) <= 4
        r.engine.emit(Finished(reason="length"))
        await peer.task

    rig(test)


def test_a_reader_that_stopped_is_disconnected(rig):
    async def test(r):
        peer = r.post({"prompt": "Hi", "stream": True})
        await r.wait_for(lambda: r.engine.live)
        peer.writable.clear()
        r.engine.emit("a")
        await peer.task
        assert r.engine.aborted
        assert not r.engine.live

    rig(test, stall_timeout_s=0.02)


def test_a_quiet_engine_is_not_a_stopped_reader(rig):
    async def test(r):
        peer = r.post({"prompt": "Hi"})
        await r.wait_for(lambda: r.engine.live)
        await asyncio.sleep(0.08)
        r.engine.emit(Finished(reason="length"))
        await peer.task
        assert peer.status == 200

    rig(test, stall_timeout_s=0.02)


def test_events_may_come_from_another_thread(rig):
    async def test(r):
        peer = r.post({"prompt": "Hi", "stream": True})
        await r.wait_for(lambda: r.engine.live)
        for entry in ("a", "b", Finished(reason="length")):
            await asyncio.to_thread(r.engine.emit, entry)
        await peer.task
        assert "".join(texts(peer)) == "ab"

    rig(test)


def test_text_after_a_stop_string_is_dropped(rig):
    async def test(r):
        body = {"prompt": "Hi", "stop": "b", "return_token_ids": True, "logprobs": 0}
        for stream in (False, True):
            peer = r.post(body | {"stream": stream})
            await r.wait_for(lambda: r.engine.live)
            r.engine.emit("abc")
            await peer.task
            last = peer.bodies[0].decode().split("\n\n")[1 if stream else 0]
            (choice,) = json.loads(last.removeprefix("data: "))["choices"]
            assert choice["token_ids"] == [*b"ab"]
            assert choice["logprobs"]["tokens"] == ["a", "b"]

    rig(test)


def test_an_engine_that_dies_between_two_submissions(rig):
    async def test(r):
        submit = r.engine.submit

        def submit_one(request, sink):
            ticket = submit(request, sink)
            r.engine.dead = "gone"
            return ticket

        r.engine.submit = submit_one
        peer = r.post({"prompt": ["a", "b"]})
        await peer.task
        assert peer.status == 503
        assert not r.engine.live

    rig(test)


def test_a_finished_response_leaves_its_task_alone(rig, fakes):
    async def test(r):
        r.engine.script = fakes.hello
        peer = r.post({"prompt": "Hi"})

        async def send(message):
            peer.sent.append(message)
            if message["type"] == "http.response.body":
                peer.gone.set()
                for _ in range(5):
                    await asyncio.sleep(0)

        peer._send = send
        await peer.task
        assert peer.task.cancelling() == 0

    rig(test)
