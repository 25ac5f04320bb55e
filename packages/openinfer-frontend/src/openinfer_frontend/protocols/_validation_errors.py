"""Error messages for bodies that fail validation, built from pydantic's error types."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from openinfer_frontend.errors import ApiError
from openinfer_frontend.protocols._field_names import FieldNames
from openinfer_frontend.protocols._generation_request import RequestModel
from openinfer_frontend.protocols._json import to_json
from openinfer_frontend.protocols.openai._chat_request import ChatRequest

_TYPES: Mapping[str, str] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "an integer",
    "int_parsing": "an integer",
    "int_type": "an integer",
    "list_type": "a list",
    "model_type": "an object",
    "string_type": "a string",
}
"""The type that a field must have, by pydantic's error type."""
_BOUNDS: Mapping[str, str] = {
    "greater_than": "greater than {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than": "less than {lt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "string_pattern_mismatch": "a string that matches {pattern}",
    "string_too_long": "at most {max_length} characters long",
    "string_too_short": "at least {min_length} characters long",
    "too_long": "a list of at most {max_length} entries",
    "too_short": "a list of at least {min_length} entries",
}
"""The form that a value must have, by pydantic's error type; bounds come from the error's
context."""
_MAX_NAME_CHARS = 100
_MAX_SEARCHED_BYTES = 1 << 20
"""Longer bodies are not searched for the field with a lone surrogate: that takes too long."""


@contextmanager
def renaming_errors(names: FieldNames) -> Iterator[None]:
    """Renames the fields in errors raised inside the block.

    Args:
        names: the client's names of a chat's fields.

    Raises:
        ApiError: the error raised inside, with the client's names; a 400 for an invalid chat.
    """
    try:
        yield
    except ValidationError as error:
        raise body_error(error, ChatRequest).renamed(names) from None
    except ApiError as error:
        raise error.renamed(names) from error


def body_error(error: ValidationError, model: type[RequestModel], body: bytes = b"") -> ApiError:
    """Returns a 400 that names the first field at fault; it does not quote the body."""
    errors = error.errors(include_url=False, include_input=False)
    field = errors[0]["loc"][:1]
    # The client most likely meant the branch of a union whose error is deepest in the body.
    depth = max(len(e["loc"]) for e in errors if e["loc"][:1] == field)
    first, *others = (e for e in errors if e["loc"][:1] == field and len(e["loc"]) == depth)
    if first["type"] == "json_invalid":
        return _invalid_json(str(first["ctx"]["error"]), body)
    if not field:
        is_own = first["type"] == "value_error"
        return ApiError(400, _reason(first) if is_own else "the body must be a JSON object")
    if first["type"] == "extra_forbidden":
        name = str(field[0])[:_MAX_NAME_CHARS]
        return ApiError(400, f"{name}: this route has no such field", param=name)
    param = _path(first["loc"], model)
    if first["type"] == "int_parsing_size":
        reason = f"is too large for an integer{model.bounds_of(str(field[0]))}"
        return ApiError.invalid(param, reason)
    same_place = [first, *(e for e in others if _path(e["loc"], model) == param)]
    forms = [form for form in map(_form, same_place) if form]
    reason = f"must be {' or '.join(dict.fromkeys(forms))}" if forms else _reason(first)
    return ApiError.invalid(param, reason)


def _form(error: Mapping[str, Any]) -> str:
    """Returns what the value must be; empty for an unknown type of error."""
    if error["type"] in _TYPES:
        return _TYPES[error["type"]]
    return _BOUNDS.get(error["type"], "").format_map(error.get("ctx", {}))


def _reason(error: Mapping[str, Any]) -> str:
    """Returns the reason for errors that are not about the form of the value."""
    if error["type"] == "missing":
        return "is required"
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return str(error["msg"])


def _invalid_json(reason: str, body: bytes) -> ApiError:
    # For a lone surrogate, the JSON parser jiter reports that the second half's escape is missing.
    if "hex escape" in reason:
        return _lone_surrogate(body)
    return ApiError(400, f"the body is not valid JSON: {reason}")


def _lone_surrogate(body: bytes) -> ApiError:
    """Returns the error for a body with half of a surrogate pair, naming the field if possible."""
    reason = "holds half of a surrogate pair (\\ud800 to \\udfff), which is no character"
    try:
        fields = json.loads(body) if len(body) <= _MAX_SEARCHED_BYTES else {}
        items = fields.items() if isinstance(fields, dict) else ()
        param = next((name for name, value in items if not _is_unicode(value)), None)
    except (ValueError, RecursionError):
        param = None
    if param is None or not _is_unicode(param):
        return ApiError(400, f"a string of the body {reason}")
    return ApiError.invalid(param, reason)


def _is_unicode(value: object) -> bool:
    try:
        to_json(value)
    except UnicodeEncodeError:
        return False
    return True


def _path(location: Sequence[int | str], model: type[BaseModel]) -> str:
    """Returns a place in a body; names of union branches and keys of objects are left out."""
    path, models = "", [model]
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
            continue
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        if fields:
            path += f".{part}" if path else part
            models = [m for field in fields for m in _models_within(field.annotation)]
    return path


def _models_within(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_within(inner)
