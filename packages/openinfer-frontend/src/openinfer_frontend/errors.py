"""Errors of the front end.

FrontendError
├── ApiError             an error response: a status and an error object
├── ClientGone           the client disconnected or stopped reading; no response is possible
├── CounterLayoutError   the shared counters were laid out by another version
├── ListenError          the address cannot be bound; the message says what to do
└── TlsError             a certificate or key cannot be used; the message names it
"""

import re
from collections.abc import Mapping
from typing import Literal

from openinfer_contract import Failed, OpenInferError, Rejected
from openinfer_frontend.protocols._field_names import FieldNames
from openinfer_text import client_field

ERROR_TYPES: Mapping[int, str] = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    405: "MethodNotAllowedError",
    408: "RequestTimeoutError",
    409: "ConflictError",
    413: "RequestTooLargeError",
    431: "RequestHeaderFieldsTooLargeError",
    500: "InternalServerError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}
"""`error.type` by HTTP status, in vLLM's spelling where vLLM has one."""

Refusal = Literal[
    "draining",  # the server is shutting down
    "max_in_flight",  # this front process runs too many requests
    "pending_bodies",  # this front process holds too many bytes of bodies
    "template_queue",  # too many requests with their own chat templates are waiting
    "queue_full",  # the engine's queue is full
    "engine_unavailable",  # there is no engine at the moment
]
"""Reason why a valid request was not accepted."""
_REFUSAL_OF_REJECTION: Mapping[str, Refusal] = {"overloaded": "queue_full", "draining": "draining"}

_STATUS_OF_REJECTION = {
    "invalid": 400,
    "unsupported": 400,
    "too_long": 400,
    "not_found": 404,
    "duplicate": 409,
    "overloaded": 503,
    "draining": 503,
}
_MAX_MESSAGE_CHARS = 500
_PATH = re.compile(r"(?<![\w/#<])(?:\w+:)?/[^\s:;,'\"()/]+(?:/[^\s:;,'\"()/]+)*/?")
"""Matches a path in a message, but neither a closing tag nor a reference within a schema."""
_ADDRESS = re.compile(r"0x[0-9a-fA-F]{5,}|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?")


class FrontendError(OpenInferError):
    """The base of every error raised by this package."""


class ApiError(FrontendError):
    """An error response.

    Attributes:
        status: the HTTP status, if the response has not begun.
        message: a sentence for the client, cut to 500 characters, so that no long input is echoed.
        param: the request's field at fault, or None.
        retry_after_s: seconds after which a retry makes sense, or None.
        allow: the methods of the route, with a 405.
        refusal: the reason why a valid request was not accepted, or None.
        is_deadline_exceeded: whether the deadline of the request passed.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        allow: str | None = None,
        refusal: Refusal | None = None,
        is_deadline_exceeded: bool = False,
    ) -> None:
        if len(message) > _MAX_MESSAGE_CHARS:
            message = message[: _MAX_MESSAGE_CHARS - 1] + "…"
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        self.allow = allow
        self.refusal = refusal
        self.is_deadline_exceeded = is_deadline_exceeded

    @classmethod
    def invalid(cls, param: str, reason: str) -> "ApiError":
        """Returns a 400 about one field: `param: reason`."""
        return cls(400, f"{param}: {reason}", param=param)

    @classmethod
    def from_end(
        cls,
        end: Rejected | Failed,
        *,
        prompt_param: str = "prompt",
        grammar_param: str | None = None,
        limit_s: float | None = None,
    ) -> "ApiError":
        """Returns the error for a request that was rejected or has failed.

        Args:
            end: the `Rejected` or `Failed` of the contract's check or of the engine, with the
                contract's field names.
            prompt_param: the route's name of `prompt_token_ids`.
            grammar_param: the field that asked for the grammar.
            limit_s: as for `deadline_exceeded`.
        """
        field, message = end.field, end.message
        param = _param_of(field, prompt_param, grammar_param)
        if isinstance(end, Rejected):
            status = _STATUS_OF_REJECTION[end.kind]
            if field and message.startswith(field):
                message = param + message[len(field) :]
            retry_after_s = end.retry_after_s
            if status == 503 and retry_after_s is None:
                retry_after_s = 1.0
            return cls.from_engine(
                status,
                message,
                param=param or None,
                retry_after_s=retry_after_s,
                refusal=_REFUSAL_OF_REJECTION.get(end.kind),
            )
        if field == "deadline":
            return cls.deadline_exceeded(_scrubbed(message), limit_s)
        if field:
            # A retry of the same request would fail in the same way.
            return cls.from_engine(400, f"{param}: {message}", param=param)
        return cls.unavailable(message) if end.is_retryable else cls.from_engine(500, message)

    @classmethod
    def from_engine(
        cls,
        status: int,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        refusal: Refusal | None = None,
    ) -> "ApiError":
        """Returns an error with an engine's message, without the machine's paths and addresses."""
        return cls(
            status,
            _scrubbed(message),
            param=param,
            retry_after_s=retry_after_s,
            refusal=refusal,
        )

    @classmethod
    def deadline_exceeded(cls, message: str, limit_s: float | None) -> "ApiError":
        """Returns a 408: the request did not finish in time.

        Args:
            message: names the state of the request when the deadline passed.
            limit_s: the server's own limit in seconds, if that passed; None for the request's
                deadline.
        """
        if limit_s is None:
            return cls(408, message, param="deadline_ms", is_deadline_exceeded=True)
        return cls(
            408, f"{message}: this server gives a request {limit_s:g} s", is_deadline_exceeded=True
        )

    @classmethod
    def unavailable(
        cls, message: str, retry_after_s: float = 1.0, refusal: Refusal | None = None
    ) -> "ApiError":
        """Returns a 503: the request cannot be served right now."""
        return cls.from_engine(503, message, retry_after_s=retry_after_s, refusal=refusal)

    @property
    def type(self) -> str:
        """`error.type`, by the status."""
        return ERROR_TYPES[self.status]

    def renamed(self, names: FieldNames) -> "ApiError":
        """Returns the error with another protocol's field names."""
        return ApiError(
            self.status,
            names.translate(self.message, self.param),
            param=None if self.param is None else names.client_name(self.param),
            retry_after_s=self.retry_after_s,
            refusal=self.refusal,
            is_deadline_exceeded=self.is_deadline_exceeded,
        )

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Returns the response headers that belong to the error."""
        headers = []
        if self.retry_after_s is not None:
            headers.append((b"retry-after", b"%d" % max(1, round(self.retry_after_s))))
        if self.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if self.allow is not None:
            headers.append((b"allow", self.allow.encode()))
        if self.is_deadline_exceeded or self.status == 501:
            # By default clients retry a 408 and a 501. Neither can succeed.
            headers.append((b"x-should-retry", b"false"))
        elif self.status == 408:
            # The client may never send the rest of the body.
            headers.append((b"connection", b"close"))
        return headers

    def body(self) -> dict[str, object]:
        """Returns OpenAI's error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.type,
                "param": self.param,
                "code": self.status,
            }
        }


def _param_of(field: str, prompt_param: str, grammar_param: str | None) -> str:
    """Returns the route's name of a field of the contract."""
    if field == "prompt_token_ids":
        return prompt_param
    if field == "grammar" and grammar_param is not None:
        return grammar_param
    return "model" if field == "adapter" else client_field(field)


def _scrubbed(message: str) -> str:
    """Removes paths and addresses from an engine's message."""
    return _ADDRESS.sub("(address)", _PATH.sub("(path)", message))


class ClientGone(FrontendError):
    """The client closed its connection, or read nothing for longer than the stall timeout."""


class CounterLayoutError(FrontendError):
    """Another process of this server uses another layout of the shared counters."""

    def __init__(self) -> None:
        super().__init__(
            "openinfer-frontend was upgraded while this server is running; restart the server"
        )


class ListenError(FrontendError):
    """No socket could be bound to the address.

    Attributes:
        host: the requested address.
        port: the requested port.
    """

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"cannot listen on {host} port {port}: {reason}")
        self.host = host
        self.port = port


class TlsError(FrontendError):
    """A certificate or key cannot be used."""
