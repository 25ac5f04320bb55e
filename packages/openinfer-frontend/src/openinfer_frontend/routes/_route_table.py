"""The table of all routes."""

from collections.abc import Sequence
from typing import Literal

from openinfer_frontend._backend import Backend
from openinfer_frontend.http._http_exchange import HttpExchange
from openinfer_frontend.http._router import Handler, Route
from openinfer_frontend.protocols._dialect import ANTHROPIC, RESPONSES
from openinfer_frontend.protocols._json import to_json
from openinfer_frontend.protocols.anthropic._messages_request import (
    CountTokensRequest,
    MessagesRequest,
)
from openinfer_frontend.protocols.openai._chat_request import ChatRequest
from openinfer_frontend.protocols.openai._completion_request import CompletionRequest
from openinfer_frontend.protocols.openai._token_requests import DetokenizeRequest, TokenizeRequest
from openinfer_frontend.protocols.responses._responses_request import ResponsesRequest
from openinfer_frontend.routes._admin_routes import AbortRequest, AdminRoutes, not_enabled
from openinfer_frontend.routes._docs_page import render
from openinfer_frontend.routes._generate_routes import GenerateRoutes
from openinfer_frontend.routes._info_routes import InfoRoutes
from openinfer_frontend.routes._openapi import describe
from openinfer_frontend.routes._token_routes import TokenRoutes


def make_routes(backend: Backend) -> list[Route]:
    """Returns all routes; those that describe the API are the last ones."""
    routes = [*_generating(GenerateRoutes(backend)), *_tokens(TokenRoutes(backend))]
    routes += [*_info(InfoRoutes(backend)), *_admin(AdminRoutes(backend)), *_others()]
    return [*routes, *_described(routes, backend.config.version)]


def _generating(routes: GenerateRoutes) -> list[Route]:
    return [
        Route(
            method="POST",
            path="/v1/completions",
            handler=routes.completions,
            summary="Continue prompts.",
            body=CompletionRequest,
        ),
        Route(
            method="POST",
            path="/v1/chat/completions",
            handler=routes.chat,
            summary="Continue a conversation.",
            body=ChatRequest,
        ),
        Route(
            method="POST",
            path="/v1/responses",
            handler=routes.responses,
            summary="Continue a conversation, as OpenAI's Responses.",
            body=ResponsesRequest,
            dialect=RESPONSES,
        ),
        Route(
            method="POST",
            path="/v1/messages",
            handler=routes.messages,
            summary="Continue a conversation, as Anthropic's Messages.",
            body=MessagesRequest,
            dialect=ANTHROPIC,
        ),
    ]


def _tokens(routes: TokenRoutes) -> list[Route]:
    return [
        Route(
            method="POST",
            path="/v1/messages/count_tokens",
            handler=routes.count_tokens,
            summary="Count the tokens of a conversation, as Anthropic does.",
            body=CountTokensRequest,
            dialect=ANTHROPIC,
        ),
        Route(
            method="POST",
            path="/v1/chat/completions/render",
            handler=routes.render_chat,
            summary="The prompt of a conversation, without an output.",
            body=ChatRequest,
        ),
        Route(
            method="POST",
            path="/tokenize",
            handler=routes.tokenize,
            summary="Token ids of a prompt or a conversation.",
            body=TokenizeRequest,
        ),
        Route(
            method="POST",
            path="/detokenize",
            handler=routes.detokenize,
            summary="The text of token ids.",
            body=DetokenizeRequest,
        ),
    ]


def _info(routes: InfoRoutes) -> list[Route]:
    return [
        Route(method="GET", path="/v1/models", handler=routes.models, summary="The served models."),
        Route(method="GET", path="/v1/models/{id}", handler=routes.model, summary="One model."),
        Route(
            method="GET",
            path="/health",
            handler=routes.health,
            summary="Whether the engine can answer.",
            access="open",
        ),
        Route(
            method="GET",
            path="/ping",
            handler=routes.health,
            summary="As `/health`.",
            access="open",
        ),
        Route(
            method="POST",
            path="/ping",
            handler=routes.health,
            summary="As `/health`.",
            access="open",
        ),
        Route(
            method="GET",
            path="/ready",
            handler=routes.ready,
            summary="Whether new requests are accepted.",
            access="open",
        ),
        Route(
            method="GET",
            path="/metrics",
            handler=routes.metrics,
            summary="Metrics for Prometheus.",
            access="open",
        ),
        Route(
            method="GET",
            path="/version",
            handler=routes.version,
            summary="The version of the server.",
            access="open",
        ),
        Route(method="GET", path="/load", handler=routes.load, summary="The load of the engine."),
        Route(
            method="GET",
            path="/server_info",
            handler=routes.server_info,
            summary="The model, the engine, their limits and parsers.",
        ),
    ]


def _admin(routes: AdminRoutes) -> list[Route]:
    no_adapters = not_enabled("LoRA adapters are not enabled on this server")
    kernels = "true: with the kernels of the first steps, which makes these steps slow"
    mode = (
        "abort: abort running requests. wait (the default): finish them first. keep: freeze them."
    )
    table: list[tuple[Literal["GET", "POST"], str, Handler, str]] = [
        ("POST", "/reset_prefix_cache", routes.reset_prefix_cache, "Evict all cached prompts."),
        ("POST", "/resume", routes.resume, "Resume after a pause."),
        ("GET", "/is_paused", routes.is_paused, "Whether the engine is paused."),
        ("POST", "/v1/load_lora_adapter", no_adapters, "Not enabled: 501."),
        ("POST", "/v1/unload_lora_adapter", no_adapters, "Not enabled: 501."),
        ("POST", "/stop_profile", routes.stop_trace, "End the trace."),
    ]
    simple = [
        Route(method=method, path=path, handler=handler, summary=summary, access="admin")
        for method, path, handler, summary in table
    ]
    return [
        Route(
            method="POST",
            path="/abort_requests",
            handler=routes.abort,
            summary="Abort running requests.",
            body=AbortRequest,
            access="admin",
        ),
        Route(
            method="POST",
            path="/pause",
            handler=routes.pause,
            summary="Stop the engine between two steps.",
            queries=(("mode", mode),),
            access="admin",
        ),
        Route(
            method="POST",
            path="/start_profile",
            handler=routes.start_trace,
            summary="Begin a trace of requests and steps.",
            queries=(("kernels", kernels),),
            access="admin",
        ),
        *simple,
    ]


def _others() -> list[Route]:
    """Returns routes of other servers, for kinds of models that are not served here."""
    refuse = not_enabled(
        "this server generates text; it has no model for embeddings, scores or classes"
    )
    paths = ("/v1/embeddings", "/pooling", "/score", "/v1/score", "/rerank", "/v1/rerank")
    return [
        Route(method="POST", path=path, handler=refuse, summary="Not available: 501.")
        for path in (*paths, "/classify")
    ]


def _described(routes: Sequence[Route], version: str) -> list[Route]:
    """Returns the routes that describe the API, for machines and for people."""

    def serve(body: bytes, media_type: bytes) -> Handler:
        async def handler(exchange: HttpExchange) -> None:
            await exchange.respond(200, body, media_type=media_type)

        return handler

    description = describe(routes, version)
    return [
        Route(
            method="GET",
            path="/openapi.json",
            handler=serve(to_json(description), b"application/json"),
            summary="This description.",
            access="open",
        ),
        Route(
            method="GET",
            path="/docs",
            handler=serve(render(description), b"text/html; charset=utf-8"),
            summary="This description as a page.",
            access="open",
        ),
    ]
