"""docs/guides/api.md lists every route, field, refused field and error of the server correctly."""

import json
import re
from pathlib import Path

import pytest

_PAGE = (Path(__file__).parents[1] / "docs/guides/api.md").read_text(encoding="utf-8")


def _type(field):
    if "$ref" in field:
        return f"`{field['$ref'].rpartition('/')[2]}`"
    if "anyOf" in field:
        kinds = dict.fromkeys(map(_type, field["anyOf"]))
        return " or ".join(kind for kind in kinds if kind != "null")
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if field.get("type") == "array":
        return f"list of {_type(field.get('items', {}))}"
    return field.get("type", "any")


def _bounds(field):
    """Returns the bounds of a value, from the branches that have any."""
    names = {"minimum": "≥ {}", "maximum": "≤ {}", "exclusiveMaximum": "< {}"}
    names |= {"maxLength": "≤ {} characters", "minItems": "≥ {} items", "maxItems": "≤ {} items"}
    branches = [field, *field.get("anyOf", ())]
    found = [
        text.format(branch[key])
        for branch in branches
        for key, text in names.items()
        if key in branch
    ]
    return ", ".join(dict.fromkeys(found))


def _rows(schema):
    required = schema.get("required", ())
    for name, field in schema["properties"].items():
        default = field.get("default")
        shown = "required" if name in required else "" if default is None else f"`{default!r}`"
        shown = {"`True`": "`true`", "`False`": "`false`"}.get(shown, shown)
        kind = ", ".join(filter(None, (_type(field), _bounds(field))))
        meaning = " ".join(field["description"].split())
        yield f"| `{name}` | {kind} | {shown} | {meaning} |"


@pytest.fixture(scope="module")
def _description():
    return {}


@pytest.fixture
def description(tiny_server, _description):
    if not _description:
        _description.update(tiny_server.get("/openapi.json")[1])
    return _description


def _but(field, neutral):
    """Returns a refused field with its accepted values."""
    passed = " or ".join(f"`{json.dumps(value)}`" for value in neutral)
    return f"`{field}`" + (f" (but {passed})" if passed else "")


def _section(title):
    found = re.search(rf"^### {re.escape(title)}$(.*?)(?=^##|\Z)", _PAGE, re.M | re.S)
    assert found, f"docs/guides/api.md lacks the section ### {title}"
    return found[1]


def test_every_object_has_its_table(description):
    for name, schema in description["components"]["schemas"].items():
        if name == "Error":
            continue
        section = _section(name)
        expected = list(_rows(schema))
        assert re.findall(r"^\| `.*$", section, re.M) == expected, "\n".join(expected)
        refused = ", ".join(_but(*item) for item in schema.get("x-refused", {}).items())
        assert not refused or f"Refused: {refused}." in " ".join(section.split()), refused


def test_every_route_has_its_row(description):
    expected = []
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            body = content.get("application/json", {}).get("schema")
            link = _type(body).strip("`") if body else ""
            shown = f"[{link}](#{link.lower()})" if link else ""
            key = "key" if "security" in operation else "open"
            row = f"| `{method.upper()} {path}` | {shown} | {key} | {operation['summary']} |"
            expected.append(row)
    rows = re.findall(r"^\| `(?:GET|POST) .*$", _PAGE, re.M)
    assert rows == expected, "\n".join(expected)


def test_every_error_has_its_row():
    from openinfer_frontend.errors import ERROR_TYPES

    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", _PAGE, re.M)
    assert {int(status): name for status, name in rows} == dict(ERROR_TYPES)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_errors_have_the_types_it_says(tiny_server, path):
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \| `(\w+)` \|", _PAGE, re.M)
    names = {int(status): (openai, anthropic) for status, openai, anthropic in rows}
    hello = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    for method, body, status in (
        ("POST", hello | {"model": "tiny", "messages": []}, 400),
        ("POST", hello | {"model": "nothing"}, 404),
        ("GET", None, 405),
    ):
        got, answer = tiny_server.request(method, path, body)
        assert got == status
        is_anthropic = path == "/v1/messages"
        assert answer["error"]["type"] == names[status][is_anthropic]
