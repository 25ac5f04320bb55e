"""What is wrong with a body, as an answer that names the client's own field."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from openinfer_frontend.errors import ApiError
from openinfer_frontend.protocols._field_names import FieldNames
from openinfer_frontend.protocols._generation_request import RequestModel
from openinfer_frontend.protocols.openai._chat_request import ChatRequest

_FORM = "Input should be "
_HALF = re.compile("[\ud800-\udfff]")
_MAX_SEARCHED_BYTES = 1 << 20
"""Of a longer body it is not said which field is at fault: looking takes too long."""


@contextmanager
def translated(names: FieldNames) -> Iterator[None]:
    """What goes wrong inside names the fields of the protocol that a chat was translated from.

    Args:
        names: of the fields of a chat in that protocol.

    Raises:
        ApiError: what was raised inside, which names a chat's fields; a chat that is not valid is
            a 400.
    """
    try:
        yield
    except ValidationError as error:
        raise explained(error, ChatRequest).renamed(names) from None
    except ApiError as error:
        raise error.renamed(names) from error


def explained(error: ValidationError, model: type[RequestModel], body: bytes = b"") -> ApiError:
    """The first problem of a body, in one short sentence that does not quote the body."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    field = errors[0]["loc"][:1]
    # Of a union's branches those that got furthest.
    depth = max(len(e["loc"]) for e in errors if e["loc"][:1] == field)
    first, *others = (e for e in errors if e["loc"][:1] == field and len(e["loc"]) == depth)
    if first["type"] == "json_invalid":
        if "hex escape" in first["msg"]:
            return _half_a_pair(body)
        return ApiError(400, f"the body is not valid JSON: {first['msg']}")
    if not field:
        is_object = not first["type"].startswith("model")
        reason = first["msg"].removeprefix("Value error, ")
        return ApiError(400, reason if is_object else "the body must be a JSON object")
    param = _spelled(first["loc"], model)
    message = first["msg"].removeprefix("Value error, ")
    forms = [e["msg"] for e in others if _spelled(e["loc"], model) == param]
    if all(form.startswith(_FORM) for form in (message, *forms)):
        message = " or ".join([message, *(form.removeprefix(_FORM) for form in forms)])
    if first["type"] == "int_parsing_size":
        message = f"is too large for an integer{model.bounds_of(str(field[0]))}"
    return ApiError(400, f"{param}: {message}", param=param)


def _half_a_pair(body: bytes) -> ApiError:
    """The answer to a body with a surrogate that has no other half."""
    reason = "holds half of a surrogate pair (\\ud800 to \\udfff), which is no character"
    try:
        fields = json.loads(body) if len(body) <= _MAX_SEARCHED_BYTES else {}
        items = fields.items() if isinstance(fields, dict) else ()
        found = (
            name for name, value in items if _HALF.search(json.dumps(value, ensure_ascii=False))
        )
        param = next(found, None)
    except (ValueError, RecursionError):
        param = None
    if param is None or _HALF.search(param):
        return ApiError(400, f"a string of the body {reason}")
    return ApiError(400, f"{param}: {reason}", param=param)


def _spelled(location: Sequence[int | str], model: type[BaseModel]) -> str:
    """A place in a body. Names of branches of unions, and keys of objects, are passed over."""
    spelled, models = "", [model]
    for part in location:
        if isinstance(part, int):
            spelled += f"[{part}]"
            continue
        fields = [m.model_fields[part] for m in models if part in m.model_fields]
        if fields:
            spelled += f".{part}" if spelled else part
            models = [m for field in fields for m in _models_within(field.annotation)]
    return spelled


def _models_within(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_within(inner)
