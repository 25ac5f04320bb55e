"""Every route of the server, in one table."""

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
    """The routes, and last those that describe them."""
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
            summary="Answer a conversation.",
            body=ChatRequest,
        ),
        Route(
            method="POST",
            path="/v1/responses",
            handler=routes.responses,
            summary="Answer a conversation, as OpenAI's Responses.",
            body=ResponsesRequest,
            dialect=RESPONSES,
        ),
        Route(
            method="POST",
            path="/v1/messages",
            handler=routes.messages,
            summary="Answer a conversation, as Anthropic's Messages.",
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
            summary="Tokens of a conversation, as Anthropic counts them.",
            body=CountTokensRequest,
            dialect=ANTHROPIC,
        ),
        Route(
            method="POST",
            path="/v1/chat/completions/render",
            handler=routes.render_chat,
            summary="The prompt that a conversation makes, without an answer.",
            body=ChatRequest,
        ),
        Route(
            method="POST",
            path="/tokenize",
            handler=routes.tokenize,
            summary="Token ids of a prompt or of messages.",
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
        Route(method="GET", path="/v1/models", handler=routes.models, summary="The models served."),
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
            summary="Whether new requests are served.",
            access="open",
        ),
        Route(
            method="GET",
            path="/metrics",
            handler=routes.metrics,
            summary="What was counted, for Prometheus.",
            access="open",
        ),
        Route(
            method="GET",
            path="/version",
            handler=routes.version,
            summary="Version of the server.",
            access="open",
        ),
        Route(method="GET", path="/load", handler=routes.load, summary="What the engine holds."),
        Route(
            method="GET",
            path="/server_info",
            handler=routes.server_info,
            summary="What is served by what, and what a request may ask of it.",
        ),
    ]


def _admin(routes: AdminRoutes) -> list[Route]:
    no_adapters = not_enabled("LoRA adapters are not enabled on this server")
    kernels = "true: with single kernels of the first steps, which makes those slow"
    mode = "abort ends live requests, wait finishes them first (the default), keep freezes them"
    table: list[tuple[Literal["GET", "POST"], str, Handler, str]] = [
        ("POST", "/reset_prefix_cache", routes.reset_prefix_cache, "Forget cached prompts."),
        ("POST", "/resume", routes.resume, "Go on after a pause."),
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
            summary="End requests that are being answered.",
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
    """What other servers have for models that are not served here."""
    refuse = not_enabled("this server generates text: it makes no embeddings, scores or classes")
    paths = ("/v1/embeddings", "/pooling", "/score", "/v1/score", "/rerank", "/v1/rerank")
    return [
        Route(method="POST", path=path, handler=refuse, summary="Not there: 501.")
        for path in (*paths, "/classify")
    ]


def _described(routes: Sequence[Route], version: str) -> list[Route]:
    """The routes that describe the others, for machines and for people."""

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
