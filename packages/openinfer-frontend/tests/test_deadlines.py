"""Requests that do not finish in time, by their own deadline or by the server's."""

import pytest

from openinfer_contract import Failed


@pytest.mark.parametrize(
    ("own_ms", "seconds", "blamed"), [(None, 2.0, None), (3000, 2.0, None), (1500, 1.5, "own")]
)
def test_the_nearer_of_the_servers_and_the_requests_own_limit_holds(
    make_app, client_of, engine, own_ms, seconds, blamed
):
    client = client_of(make_app(engine, request_timeout_s=2.0))
    body = {"prompt": "Hi"} | ({} if own_ms is None else {"deadline_ms": own_ms})
    assert client.post("/v1/completions", body).status_code == 200
    (request,) = engine.requests
    assert request.deadline == pytest.approx(request.arrival + seconds)

    message = "the deadline passed after 3 output tokens"
    engine.script = lambda _: [Failed(message=message, field="deadline")]
    response = client.post("/v1/completions", body)
    error = response.json()["error"]
    assert (response.status_code, response.headers["x-should-retry"]) == (408, "false")
    if blamed is None:
        assert error["param"] is None
        assert error["message"] == f"{message}: this server gives a request 2 s"
    else:
        assert (error["param"], error["message"]) == ("deadline_ms", message)


MESSAGES = [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", {"prompt": "Hi"}, "deadline_ms"),
        ("/v1/chat/completions", {"messages": MESSAGES}, "deadline_ms"),
        ("/v1/responses", {"input": "Hi"}, "deadline_ms"),
        ("/v1/messages", {"model": "tiny", "max_tokens": 9, "messages": MESSAGES}, None),
    ],
    ids=["completions", "chat", "responses", "messages"],
)
def test_a_deadline_that_passes_is_a_timeout(client, engine, path, body, param):
    message = "the deadline passed after 3 output tokens"
    engine.script = lambda _: [Failed(message=message, field="deadline")]
    response = client.post(path, body | {"deadline_ms": 1})
    error = response.json()["error"]
    assert (response.status_code, error["message"]) == (408, message)
    assert error.get("param") == param
    assert response.headers["x-should-retry"] == "false"
    assert "connection" not in response.headers, "its body has arrived"
