"""How each protocol spells errors and ends a stream."""

from collections.abc import Mapping
from typing import Any, Protocol

from openinfer_frontend.errors import ApiError
from openinfer_frontend.protocols._json import to_json


class Dialect(Protocol):
    """The parts of a route's responses that are not content: errors and ends.

    Attributes:
        end_mark: the last bytes of a stream of events.
    """

    @property
    def end_mark(self) -> bytes: ...

    def error_body(self, error: ApiError, request_id: str) -> dict[str, Any]:
        """Returns the error object for the body of a response."""

    def error_event(self, error: ApiError, request_id: str) -> bytes:
        """Returns the last event of a stream that fails."""


class OpenAIDialect:
    """Chat completions, completions, and the routes of no particular protocol."""

    end_mark = b"data: [DONE]\n\n"

    def error_body(self, error: ApiError, request_id: str) -> dict[str, Any]:
        """Returns OpenAI's nested error object."""
        return error.body()

    def error_event(self, error: ApiError, request_id: str) -> bytes:
        """Returns the error object as data."""
        return b"data: " + to_json(error.body()) + b"\n\n"


class ResponsesDialect:
    """OpenAI's Responses: named events, and no end mark."""

    end_mark = b""

    def error_body(self, error: ApiError, request_id: str) -> dict[str, Any]:
        """Returns OpenAI's nested error object."""
        return error.body()

    def error_event(self, error: ApiError, request_id: str) -> bytes:
        """Returns the event `error`."""
        data = {"type": "error", "code": error.type, "message": error.message}
        return named_event("error", data | {"param": error.param, "sequence_number": 0})


class AnthropicDialect:
    """Anthropic's Messages: named events, and its own error objects."""

    end_mark = b""

    _TYPES: Mapping[int, str] = {
        400: "invalid_request_error",
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        405: "invalid_request_error",
        408: "timeout_error",
        409: "invalid_request_error",
        413: "request_too_large",
        503: "overloaded_error",
    }

    def error_body(self, error: ApiError, request_id: str) -> dict[str, Any]:
        """Returns Anthropic's error object."""
        kind = self._TYPES.get(error.status, "api_error")
        inner = {"type": kind, "message": error.message}
        return {"type": "error", "error": inner, "request_id": request_id}

    def error_event(self, error: ApiError, request_id: str) -> bytes:
        """Returns the event `error`."""
        return named_event("error", self.error_body(error, request_id))


OPENAI = OpenAIDialect()
RESPONSES = ResponsesDialect()
ANTHROPIC = AnthropicDialect()


def named_event(name: str, data: Mapping[str, Any]) -> bytes:
    """Returns one server-sent event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), to_json(data))
