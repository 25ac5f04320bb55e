"""A small streaming client for OpenAI-compatible servers, without dependencies."""

import http.client
import json
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

from openinfer.errors import RemoteServerError
from openinfer.terminal._terminal_model import Ended, Message
from openinfer_text import (
    Content,
    Piece,
    Reasoning,
    ToolCallArguments,
    ToolCallEnd,
    ToolCallStart,
)

_CONNECT_TIMEOUT_S = 10.0
_KEY = re.compile("[!-~]+")
_KEY_ADVICE = " (--api-key or OPENINFER_API_KEY gives a key)"


class RemoteModel:
    """A model on an OpenAI-compatible server; satisfies `Model`.

    Closing a stream early closes its connection, which makes the server abort the request.
    """

    def __init__(self, url: str, model: str | None = None, api_key: str | None = None) -> None:
        """Asks the server for its model, unless one is named.

        Args:
            url: address of the server, with or without a scheme and `/v1`.
            model: name of one of the server's models; None: the server's first one.
            api_key: sent as `Authorization: Bearer`; None or empty: no such header.

        Raises:
            RemoteServerError: the server cannot be reached, or is not OpenAI-compatible.
        """
        advice = f"--url {url}: give a URL such as http://127.0.0.1:8000"
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port
        except ValueError as error:
            raise RemoteServerError(advice) from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RemoteServerError(advice)
        self._headers = {"content-type": "application/json"}
        if api_key:
            if not _KEY.fullmatch(api_key):
                raise RemoteServerError("the API key must be visible ASCII characters")
            self._headers["authorization"] = f"Bearer {api_key}"
        self._url = url
        self._is_tls = parts.scheme == "https"
        self._host, self._port = parts.hostname, port
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self.name = model or self._first_model()

    def stream_chat(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Generator[Piece | Ended, None, None]:
        """Streams the response to a conversation."""
        body = {"model": self.name, "messages": list(messages), "stream": True, **options}
        if tools:
            body["tools"] = list(tools)
        reader = _DeltaReader()
        for choice in self._events("/v1/chat/completions", body):
            try:
                pieces = reader.read(choice)
            except (AttributeError, TypeError, KeyError) as cause:
                raise self._unreadable() from cause
            yield from pieces
        yield Ended(reader.finish_reason)

    def stream_completion(
        self, prompt: str, options: Mapping[str, Any]
    ) -> Generator[str, None, None]:
        """Streams the continuation of a text."""
        body = {"model": self.name, "prompt": prompt, "stream": True, **options}
        for choice in self._events("/v1/completions", body):
            yield choice.get("text") or ""

    def num_tokens_left(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> int | None:
        """Returns the free tokens of the context; None if the server has no `/tokenize`."""
        body = {"model": self.name, "messages": list(messages)}
        if tools:
            body["tools"] = list(tools)
        try:
            with self._request("POST", "/tokenize", json.dumps(body).encode()) as response:
                counted = json.loads(response.read())
            return int(counted["max_model_len"]) - int(counted["count"])
        except (RemoteServerError, ValueError, KeyError, TypeError):
            return None

    def close(self) -> None:
        """Does nothing: no connection is kept between requests."""

    def _first_model(self) -> str:
        with self._request("GET", "/v1/models", None) as response:
            try:
                return str(json.loads(response.read())["data"][0]["id"])
            except (ValueError, KeyError, IndexError, TypeError) as error:
                raise RemoteServerError(f"{self._url} lists no models") from error

    def _events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        with self._request("POST", path, json.dumps(body).encode()) as response:
            for raw in response:
                line = raw.strip()
                if not line.startswith(b"data:"):
                    continue
                payload = line[5:].strip()
                if payload == b"[DONE]":
                    return
                try:
                    message = json.loads(payload)
                    error = message.get("error")
                    choices = message.get("choices", [])[:1]
                except (ValueError, AttributeError, TypeError) as cause:
                    raise self._unreadable() from cause
                if error:
                    raise RemoteServerError(_message_of(error) or "the server failed")
                yield from choices
        raise RemoteServerError(f"{self._url} ended its response too early")

    def _unreadable(self) -> RemoteServerError:
        return RemoteServerError(f"{self._url} sent an event that cannot be read")

    @contextmanager
    def _request(
        self, method: str, path: str, body: bytes | None
    ) -> Iterator[http.client.HTTPResponse]:
        """Yields a response of status 200, and closes it and its connection afterwards."""
        connection = self._connect()
        with closing(connection):
            try:
                with self._send(connection, method, path, body) as response:
                    yield response
            except (OSError, http.client.HTTPException) as error:
                raise RemoteServerError(f"the connection to {self._url} broke: {error}") from error

    def _connect(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._is_tls else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_CONNECT_TIMEOUT_S)
        try:
            connection.connect()
        except OSError as error:
            raise RemoteServerError(f"cannot connect to {self._url}: {error}") from error
        connection.sock.settimeout(None)
        return connection

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None
    ) -> http.client.HTTPResponse:
        connection.request(method, self._base + path, body, self._headers)
        response = connection.getresponse()
        if response.status != 200:
            with response:
                reason = _reason(response)
            if response.status == 401:
                reason += _KEY_ADVICE
            raise RemoteServerError(f"{self._url} answered {response.status}: {reason}")
        return response


class _DeltaReader:
    """Turns the deltas of one streamed choice into pieces."""

    def __init__(self) -> None:
        self.finish_reason = "stop"
        self._calls: dict[int, int] = {}
        """Index of each call in the pieces, by its index in the server's deltas."""

    def read(self, choice: Mapping[str, Any]) -> list[Piece]:
        """Returns the pieces of one event. Calls end when the choice does."""
        delta = choice.get("delta") or {}
        pieces: list[Piece] = []
        if reasoning := delta.get("reasoning") or delta.get("reasoning_content"):
            pieces.append(Reasoning(str(reasoning)))
        if content := delta.get("content"):
            pieces.append(Content(str(content)))
        for call in delta.get("tool_calls") or ():
            pieces += self._read_call(call)
        if reason := choice.get("finish_reason"):
            self.finish_reason = str(reason)
            if reason == "tool_calls":
                pieces += [ToolCallEnd(index) for index in self._calls.values()]
        return pieces

    def _read_call(self, call: Mapping[str, Any]) -> Iterator[Piece]:
        number, function = call.get("index", 0), call.get("function") or {}
        if number not in self._calls:
            self._calls[number] = len(self._calls)
            yield ToolCallStart(self._calls[number], str(call["id"]), str(function["name"]))
        if arguments := function.get("arguments"):
            yield ToolCallArguments(self._calls[number], str(arguments))


def _reason(response: http.client.HTTPResponse) -> str:
    content = response.read(4096)
    try:
        message = _message_of(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        message = None
    return message or content.decode(errors="replace")[:200]


def _message_of(error: Any) -> str | None:
    """Returns the message of an error, which is an object or only a string."""
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else None
