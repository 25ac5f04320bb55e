"""The headers of a request that concern the engine."""

import re

from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._lowering import RequestContext
from openinfer_frontend.http._http_exchange import HttpExchange
from openinfer_frontend.protocols._generation_request import (
    MAX_PRIORITY,
    MAX_SESSION_ID_CHARS,
    GenerationRequest,
)

_INTEGER = re.compile(r"[-+]?[0-9]{1,16}")


def request_context(
    exchange: HttpExchange,
    request: GenerationRequest,
    id_prefix: str,
    prompt_param: str,
    default_max_tokens: int | None,
) -> RequestContext:
    """Reads the headers that concern the engine, and names the response.

    Raises:
        ApiError: 400, naming the header.
    """
    if request.request_id is not None:
        exchange.suggest_request_id(request.request_id)
    return RequestContext(
        response_id=id_prefix + exchange.request_id,
        prompt_param=prompt_param,
        default_max_tokens=default_max_tokens,
        tenant=exchange.header("x-tenant-id") or "",
        session_id=_session_id(exchange),
        priority=_priority(exchange),
        trace_parent=exchange.header("traceparent") or "",
    )


def _session_id(exchange: HttpExchange) -> str:
    given = exchange.header("x-session-id") or ""
    if len(given) > MAX_SESSION_ID_CHARS:
        message = f"X-Session-ID must be at most {MAX_SESSION_ID_CHARS} characters"
        raise ApiError(400, message, param="X-Session-ID")
    return given


def _priority(exchange: HttpExchange) -> int | None:
    given = exchange.header("x-vllm-priority")
    if given is None:
        return None
    if not _INTEGER.fullmatch(given) or not -MAX_PRIORITY <= int(given) < MAX_PRIORITY:
        message = f"X-Vllm-Priority must be an integer, ≥ {-MAX_PRIORITY} and < {MAX_PRIORITY}"
        raise ApiError(400, message, param="X-Vllm-Priority")
    return int(given)
