"""The table of all routes."""

from collections.abc import Sequence

from openinfer_frontend._backend import Backend
from openinfer_frontend.http._http_exchange import HttpExchange
from openinfer_frontend.http._router import Access, Handler, Method, Route
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
            "POST",
            "/v1/completions",
            routes.completions,
            "Continue prompts.",
            CompletionRequest,
        ),
        Route(
            "POST",
            "/v1/chat/completions",
            routes.chat,
            "Continue a conversation.",
            ChatRequest,
        ),
        Route(
            "POST",
            "/v1/responses",
            routes.responses,
            "Continue a conversation, as OpenAI's Responses.",
            ResponsesRequest,
            dialect=RESPONSES,
        ),
        Route(
            "POST",
            "/v1/messages",
            routes.messages,
            "Continue a conversation, as Anthropic's Messages.",
            MessagesRequest,
            dialect=ANTHROPIC,
        ),
    ]


def _tokens(routes: TokenRoutes) -> list[Route]:
    count = "Count the tokens of a conversation, as Anthropic does."
    render = "The prompt of a conversation, without an output."
    encode = "Token ids of a prompt or a conversation."
    return [
        Route(
            "POST",
            "/v1/messages/count_tokens",
            routes.count_tokens,
            count,
            CountTokensRequest,
            dialect=ANTHROPIC,
        ),
        Route("POST", "/v1/chat/completions/render", routes.render_chat, render, ChatRequest),
        Route("POST", "/tokenize", routes.tokenize, encode, TokenizeRequest),
        Route(
            "POST", "/detokenize", routes.detokenize, "The text of token ids.", DetokenizeRequest
        ),
    ]


def _info(routes: InfoRoutes) -> list[Route]:
    table: list[tuple[Method, str, Handler, str, Access]] = [
        ("GET", "/v1/models", routes.models, "The served models.", "user"),
        ("GET", "/v1/models/{id}", routes.model, "One model.", "user"),
        ("GET", "/health", routes.health, "Whether the engine can answer.", "open"),
        ("GET", "/ping", routes.health, "As `/health`.", "open"),
        ("POST", "/ping", routes.health, "As `/health`.", "open"),
        ("GET", "/ready", routes.ready, "Whether new requests are accepted.", "open"),
        ("GET", "/metrics", routes.metrics, "Metrics for Prometheus.", "open"),
        ("GET", "/version", routes.version, "The version of the server.", "open"),
        ("GET", "/load", routes.load, "The load of the engine.", "user"),
        (
            "GET",
            "/server_info",
            routes.server_info,
            "The model, the engine, their limits and parsers.",
            "user",
        ),
    ]
    return [Route(*row[:4], access=row[4]) for row in table]


def _admin(routes: AdminRoutes) -> list[Route]:
    no_adapters = not_enabled("LoRA adapters are not enabled on this server")
    kernels = "true: with the kernels of the first steps, which makes these steps slow"
    mode = (
        "abort: abort running requests. wait (the default): finish them first. keep: freeze them."
    )
    table: list[tuple[Method, str, Handler, str]] = [
        ("POST", "/reset_prefix_cache", routes.reset_prefix_cache, "Evict all cached prompts."),
        ("POST", "/resume", routes.resume, "Resume after a pause."),
        ("GET", "/is_paused", routes.is_paused, "Whether the engine is paused."),
        ("POST", "/v1/load_lora_adapter", no_adapters, "Not enabled: 501."),
        ("POST", "/v1/unload_lora_adapter", no_adapters, "Not enabled: 501."),
        ("POST", "/stop_profile", routes.stop_trace, "End the trace."),
    ]
    return [
        Route(
            "POST",
            "/abort_requests",
            routes.abort,
            "Abort running requests.",
            AbortRequest,
            access="admin",
        ),
        Route(
            "POST",
            "/pause",
            routes.pause,
            "Stop the engine between two steps.",
            queries=(("mode", mode),),
            access="admin",
        ),
        Route(
            "POST",
            "/start_profile",
            routes.start_trace,
            "Begin a trace of requests and steps.",
            queries=(("kernels", kernels),),
            access="admin",
        ),
        *(Route(*row, access="admin") for row in table),
    ]


def _others() -> list[Route]:
    """Returns routes of other servers, for kinds of models that are not served here."""
    refuse = not_enabled(
        "this server generates text; it has no model for embeddings, scores or classes"
    )
    paths = ("/v1/embeddings", "/pooling", "/score", "/v1/score", "/rerank", "/v1/rerank")
    return [Route("POST", path, refuse, "Not available: 501.") for path in (*paths, "/classify")]


def _described(routes: Sequence[Route], version: str) -> list[Route]:
    """Returns the routes that describe the API, for machines and for people."""

    def serve(body: bytes, media_type: bytes) -> Handler:
        async def handler(exchange: HttpExchange) -> None:
            await exchange.respond(200, body, media_type=media_type)

        return handler

    description = describe(routes, version)
    as_json = serve(to_json(description), b"application/json")
    as_html = serve(render(description), b"text/html; charset=utf-8")
    return [
        Route("GET", "/openapi.json", as_json, "This description.", access="open"),
        Route("GET", "/docs", as_html, "This description as a page.", access="open"),
    ]
