"""The OpenAPI description of the table of routes."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.json_schema import models_json_schema

from openinfer_frontend.http._router import Route

_ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": "integer"},
            },
        }
    },
}
_KEY = "key"
_KEY_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "description": "Needed only if the operator has set keys. `x-api-key: KEY` is accepted too.",
}


def describe(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """Returns the OpenAPI 3.1 document of the routes.

    The extension `x-refused` of a body's schema lists the known fields that are refused, each with
    the values that are accepted because they ask for nothing. null is always accepted.
    """
    models = dict.fromkeys(route.body for route in routes if route.body is not None)
    keyed, definitions = models_json_schema(
        [(model, "validation") for model in models],
        ref_template="#/components/schemas/{model}",
    )
    schemas = dict(definitions.get("$defs", {})) | {"Error": _ERROR_SCHEMA}
    for model in models:
        schemas[model.__name__]["x-refused"] = dict(sorted(model.UNSUPPORTED.items()))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        body = None if route.body is None else keyed[route.body, "validation"]
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, body)
    return {
        "openapi": "3.1.0",
        "info": {"title": "OpenInfer", "version": version},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {_KEY: _KEY_SCHEME}},
    }


def _operation(route: Route, body: Mapping[str, Any] | None) -> dict[str, Any]:
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "responses": {
            "200": {"description": "success"},
            "default": {"description": "an error object", "content": error},
        },
    }
    text = {"schema": {"type": "string"}}
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "query", "description": what} | text for name, what in route.queries
    ]
    if "{id}" in route.path:
        parameters.append({"name": "id", "in": "path", "required": True} | text)
    if parameters:
        operation["parameters"] = parameters
    if route.access != "open":
        operation["security"] = [{_KEY: []}]
    if body is not None:
        content = {"application/json": {"schema": body}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation
