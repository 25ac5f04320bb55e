"""The small JSON files of a checkpoint folder, read with errors that name file and field."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from openinfer_text.errors import CheckpointTextError

_Number = TypeVar("_Number", int, float)

NAMED_SPECIAL_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """Returns the JSON object in `folder/name`, or None if the file does not exist.

    Raises:
        CheckpointTextError: the file is not UTF-8 JSON, or does not hold an object.
    """
    text = read_text(folder, name)
    if text is None:
        return None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise CheckpointTextError(name, "", f"is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise CheckpointTextError(name, "", "must hold a JSON object")
    return value


def read_text(folder: Path, name: str) -> str | None:
    """Returns the text of `folder/name`, or None if the file does not exist.

    Raises:
        CheckpointTextError: the file cannot be read as UTF-8.
    """
    try:
        return (folder / name).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointTextError(name, "", f"cannot be read as UTF-8 text ({error})") from error


def read_number(
    file: str, config: Mapping[str, Any], field: str, kind: type[_Number]
) -> _Number | None:
    """Returns a number of a file's object, or None if it is absent or null.

    Raises:
        CheckpointTextError: the value is not a finite number of this kind.
    """
    value = config.get(field)
    if value is None:
        return None
    noun = "a whole number" if kind is int else "a number"
    problem = CheckpointTextError(file, field, f"must be {noun}, not {str(value)[:40]}")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise problem
    try:
        if math.isfinite(value) and kind(value) == value:
            return kind(value)
    except OverflowError:
        pass
    raise problem


def read_special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Returns the named special tokens (`bos_token` and so on) that the checkpoint defines.

    tokenizer_config.json takes precedence over special_tokens_map.json, name by name.

    Raises:
        CheckpointTextError: a named token is neither a string nor an object with `content`.
    """
    tokens: dict[str, str] = {}
    fallback = read_json(folder, "special_tokens_map.json") or {}
    for name in NAMED_SPECIAL_TOKENS:
        file, source = (
            ("tokenizer_config.json", config)
            if name in config
            else ("special_tokens_map.json", fallback)
        )
        content = _token_content(file, name, source.get(name))
        if content is not None:
            tokens[name] = content
    return tokens


def _token_content(file: str, field: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        content: str = value["content"]
        return content
    raise CheckpointTextError(file, field, "must be a string or an object with `content`")


def read_chat_templates(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Returns chat templates by name; "default" is used unless another one is asked for.

    The first source that exists is used: chat_template.jinja (together with
    additional_chat_templates/*.jinja), chat_template.json, `chat_template` in
    tokenizer_config.json. The result is empty if the checkpoint has none.

    Raises:
        CheckpointTextError: a template is not text, or a list of named ones is malformed.
    """
    source = read_text(folder, "chat_template.jinja")
    if source is not None:
        templates = {"default": source}
        for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
            extra = read_text(path.parent, path.name)
            assert extra is not None
            templates[path.stem] = extra
        return templates
    separate = read_json(folder, "chat_template.json")
    if separate is not None:
        return _templates_in("chat_template.json", separate.get("chat_template"))
    return _templates_in("tokenizer_config.json", config.get("chat_template"))


def _templates_in(file: str, value: Any) -> dict[str, str]:
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        value = [{"name": name, "template": source} for name, source in value.items()]
    templates: dict[str, str] = {}
    for index, entry in enumerate(value if isinstance(value, list) else [None]):
        name = entry.get("name") if isinstance(entry, dict) else None
        source = entry.get("template") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not isinstance(source, str):
            raise CheckpointTextError(
                file, f"chat_template[{index}]", "must be an object with `name` and `template`"
            )
        templates[name] = source
    return templates
