"""When the event loop polls for events instead of waiting for them."""

import asyncio
import selectors

import pytest

from openinfer_frontend.http._polling import Polling


class WatchedSelector(selectors.DefaultSelector):
    """Records how long each call may wait."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def select(self, timeout=None):
        self.waits.append(timeout)
        return super().select(timeout)

    async def num_polls(self, duration_s):
        """Returns the number of polling calls (with timeout 0) within some seconds."""
        self.waits.clear()
        await asyncio.sleep(duration_s)
        return self.waits.count(0)


@pytest.fixture
def run():
    """Runs a coroutine function that takes the loop's selector."""

    def run(work):
        selector = WatchedSelector()
        loop = asyncio.SelectorEventLoop(selector)
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(work(selector))

    return run


def test_the_loop_polls_for_a_moment_and_then_sleeps(run):
    async def work(selector):
        polling = Polling(0.05)
        assert await selector.num_polls(0.02) < 5
        polling.touch()
        assert await selector.num_polls(0.04) > 50
        await asyncio.sleep(0.03)
        assert await selector.num_polls(0.02) < 5
        polling.touch()
        assert await selector.num_polls(0.02) > 50

    run(work)


def test_polling_pauses_while_a_thread_has_work(run):
    async def work(selector):
        polling = Polling(0.2)
        polling.touch()
        with polling.paused():
            with polling.paused():
                polling.touch()
                await asyncio.sleep(0.01)
                assert await selector.num_polls(0.02) < 5
            assert await selector.num_polls(0.02) < 5
        assert await selector.num_polls(0.02) > 50

    run(work)


def test_without_a_duration_the_loop_never_polls(run):
    async def work(selector):
        polling = Polling(0.0)
        polling.touch()
        with polling.paused():
            pass
        assert await selector.num_polls(0.02) < 5

    run(work)


def test_the_loop_polls_after_a_submission_and_after_an_end(
    engine, make_app, client_of, monkeypatch
):
    notes = []
    monkeypatch.setattr(Polling, "touch", lambda _: notes.append(len(engine.requests)))
    client = client_of(make_app(engine, poll_s=0.01))
    assert client.post("/v1/completions", {"prompt": "Hi", "max_tokens": 0}).status_code == 400
    assert client.post("/v1/completions", {"prompt": "Hi"}).status_code == 200
    assert notes == [1, 1]


CHAT = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "long " * 30}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "long " * 30}]}),
        ("/v1/chat/completions", {"messages": CHAT, "chat_template": "Hello"}),
        ("/metrics", None),
    ],
    ids=["prompt", "chat", "foreign template", "metrics"],
)
def test_polling_pauses_while_a_thread_works_for_a_request(
    path, body, engine, make_app, client_of, monkeypatch
):
    entered, paused = [], Polling.paused

    def note(polling):
        entered.append(polling)
        return paused(polling)

    monkeypatch.setattr(Polling, "paused", note)
    settings = {"max_inline_bytes": 64, "trust_request_chat_template": True}
    client = client_of(make_app(engine, poll_s=0.01, **settings))
    answer = client.request("GET" if body is None else "POST", path, json=body)
    assert answer.status_code == 200, answer.text
    assert len(entered) == 1
