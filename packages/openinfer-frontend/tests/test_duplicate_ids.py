"""Clients choose request ids; a duplicate id must not affect the first request."""

import asyncio

import httpx
import pytest

from openinfer_contract import Finished, Rejected, TokenEvent

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Hi"}]}


@pytest.mark.parametrize(("name", "n"), [("same", 3), ("same", 1), ("same-1", 1)])
def test_a_duplicate_leaves_the_live_request_alone(make_app, fakes, name, n):
    engine = fakes.FakeEngine()
    app = make_app(engine)

    async def main():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:

            def ask(name, n):
                headers = {"x-request-id": name}
                return client.post(CHAT, json=BODY | {"n": n}, headers=headers)

            first = asyncio.create_task(ask("same", 2))
            await fakes.wait_for(lambda: len(engine.live) == 2)
            second = await ask(name, n)
            listed, live = list(app._backend.live), engine.live
            for request_id in live:
                engine.emit(Finished(reason="length"), request_id)
            third = asyncio.create_task(ask(name, n))
            answer = await first
            await fakes.wait_for(lambda: len(engine.live) == n)
            for request_id in engine.live:
                engine.emit(Finished(reason="length"), request_id)
            return answer, second, await third, listed, live

    first, second, third, listed, live = asyncio.run(main())
    assert second.status_code == 409
    assert second.json()["error"]["param"] == "request_id"
    assert live == ["chatcmpl-same-0", "chatcmpl-same-1"]
    assert listed == ["chatcmpl-same"]
    assert "chatcmpl-same" in second.json()["error"]["message"]
    assert [choice["finish_reason"] for choice in first.json()["choices"]] == ["length"] * 2
    assert third.status_code == 200, "an id is free again"
    assert engine.aborted == []
    assert not app._backend.live


def test_ids_that_the_engine_refused_are_not_aborted(make_app, fakes):
    """Another front process may have requests with these ids."""
    engine = fakes.FakeEngine()
    submit = engine.submit

    def refuse_all_but_the_first(request, sink):
        if request.request_id.endswith("-0"):
            return submit(request, sink)
        end = Rejected(kind="duplicate", field="request_id", message="live already")
        return sink(TokenEvent(end=end))

    engine.submit = refuse_all_but_the_first

    async def main():
        transport = httpx.ASGITransport(app=make_app(engine))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            headers = {"x-request-id": "same"}
            return await client.post(CHAT, json=BODY | {"n": 4}, headers=headers)

    assert asyncio.run(main()).status_code == 409
    assert engine.aborted == ["chatcmpl-same-0"]
