"""The API description as one HTML page without external resources."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

_HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>OpenInfer API</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; margin: .5em 0 }
td { border-top: 1px solid #8884; padding: .2em .8em .2em 0; vertical-align: top }
summary { cursor: pointer; padding: .3em 0 }
code { font-size: 90% }
</style>
"""


def render(description: Mapping[str, Any]) -> bytes:
    """Renders an OpenAPI document."""
    return "\n".join(_lines(description)).encode()


def _lines(description: Mapping[str, Any]) -> Iterator[str]:
    info, schemas = description["info"], description["components"]["schemas"]
    yield _HEAD
    yield f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
    yield '<p>For machines: <a href="openapi.json">openapi.json</a>.'
    yield "Unknown fields are ignored. A star marks required fields.</p>"
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            yield f"<details><summary><b>{method.upper()} {escape(path)}</b>"
            yield f"{escape(operation['summary'])}</summary>"
            yield from _body(operation, schemas)
            yield "</details>"


def _body(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    parameters = operation.get("parameters", [])
    if parameters:
        rows = [(p["name"], f"in the {p['in']}", p.get("description", "")) for p in parameters]
        yield _table(rows)
    content = operation.get("requestBody", {}).get("content")
    if content is None:
        return
    name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
    yield _table(fields(schemas[name]))
    if refused := schemas[name]["x-refused"]:
        yield f"<p>Known and not supported: {', '.join(f'<code>{f}</code>' for f in refused)}.</p>"
    for nested in _nested(schemas[name], schemas):
        yield f"<p><b>{nested}</b></p>"
        yield _table(fields(schemas[nested]))


def fields(schema: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns name, type and meaning of each field; a star marks required fields."""
    required = schema.get("required", ())
    return [
        (f"{name}*" if name in required else name, _type(field), field.get("description", ""))
        for name, field in schema["properties"].items()
    ]


def _type(field: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return str(field["$ref"].rpartition("/")[2])
    if "anyOf" in field:
        kinds = dict.fromkeys(_type(branch) for branch in field["anyOf"])
        return " or ".join(kind for kind in kinds if kind != "null")
    if "enum" in field:
        return ", ".join(map(str, field["enum"]))
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return str(field.get("type", "any"))


def _nested(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> list[str]:
    """Returns the names of objects that are parts of this one."""
    words = set(" ".join(kind for _, kind, _ in fields(schema)).split())
    return [name for name in schemas if name in words]


def _table(rows: list[tuple[str, str, str]]) -> str:
    cells = (
        f"<tr><td><code>{escape(name)}</code><td>{escape(kind)}<td>{escape(meaning)}</tr>"
        for name, kind, meaning in rows
    )
    return f"<table>{''.join(cells)}</table>"
