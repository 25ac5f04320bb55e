"""The OpenAPI description, from the request models."""

from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from openinfer_frontend._exchange import to_json
from openinfer_frontend._requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

_POSTS: dict[str, tuple[str, type[BaseModel] | None]] = {
    "/v1/completions": ("Continue prompts.", CompletionRequest),
    "/v1/chat/completions": ("Answer a conversation.", ChatRequest),
    "/tokenize": ("Token ids of a prompt or of messages.", TokenizeRequest),
    "/detokenize": ("The text of token ids.", DetokenizeRequest),
    "/reset_prefix_cache": ("Forget cached prompts.", None),
}
_GETS = {
    "/v1/models": "The models served.",
    "/v1/models/{id}": "One model.",
    "/health": "Whether the engine can answer.",
    "/ready": "Whether new requests are served.",
    "/version": "Version of the server.",
    "/load": "What the engine holds.",
}
_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }
    },
}


def describe(version: str) -> bytes:
    """The OpenAPI 3.1 document of the routes, as JSON."""
    models = [model for _, model in _POSTS.values() if model is not None]
    keyed, definitions = models_json_schema(
        [(model, "validation") for model in models],
        ref_template="#/components/schemas/{model}",
    )
    schemas = dict(definitions.get("$defs", {})) | {"Error": _ERROR_SCHEMA}
    paths: dict[str, dict[str, Any]] = {
        path: {"get": _operation(summary, path)} for path, summary in _GETS.items()
    }
    for path, (summary, model) in _POSTS.items():
        operation = _operation(summary, path)
        if model is not None:
            schema = keyed[model, "validation"]
            operation["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": schema}},
            }
        paths[path] = {"post": operation}
    return to_json(
        {
            "openapi": "3.1.0",
            "info": {"title": "OpenInfer", "version": version},
            "paths": paths,
            "components": {"schemas": schemas},
        }
    )


def _operation(summary: str, path: str) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "success"},
            "default": {"description": "an error object", "content": error},
        },
    }
    if "{id}" in path:
        parameter = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [parameter]
    return operation
