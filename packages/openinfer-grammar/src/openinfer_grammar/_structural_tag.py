"""Structural tags as Lark grammars: constrained parts between marks, in free text or alone.

The JSON is that of `structured_outputs.structural_tag`: either `structures` and `triggers`, or a
`format` of the types in `_FORMATS`. Other types are refused by name.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openinfer_grammar.errors import GrammarRefused

_TEXT = r"/(.|\n)*/"
_WithForm = Callable[[Any], dict[str, Any]]


def lower_structural_tag(tag: Any, with_form: _WithForm) -> str:
    """Returns the Lark grammar of a structural tag.

    Args:
        tag: its JSON.
        with_form: adds the spelling of JSON (separators) to a schema.

    Raises:
        GrammarRefused: a field or a type cannot be used; names it.
    """
    if not isinstance(tag, dict):
        raise GrammarRefused("a structural tag is an object")
    if "format" in tag:
        form = tag["format"]
    elif "structures" in tag:
        form = {
            "type": "triggered_tags",
            "triggers": tag.get("triggers"),
            "tags": [_legacy(item, i) for i, item in enumerate(_list(tag, "structures", ""))],
        }
    else:
        raise _refused("format", "", "is missing; so are structures and triggers")
    writer = _Writer(with_form)
    start = writer.write(form, "format")
    return "\n".join(("%llguidance {}", f"start: {start}", *writer.rules)) + "\n"


def _legacy(item: Any, index: int) -> dict[str, Any]:
    where = f"structures.{index}"
    if not isinstance(item, dict):
        raise _refused("structures", where, "must be an object")
    content = {"type": "json_schema", "json_schema": item.get("schema", True)}
    return {"type": "tag", "content": content, **{k: item.get(k) for k in ("begin", "end")}}


class _Writer:
    """Writer of the rules of one grammar."""

    def __init__(self, with_form: _WithForm) -> None:
        self.rules: list[str] = []
        self._with_form = with_form

    def write(self, form: Any, where: str) -> str:
        """Returns the expression of a format, and adds the rules that it needs."""
        kind = form.get("type") if isinstance(form, dict) else None
        lower = _FORMATS.get(kind) if isinstance(kind, str) else None
        if lower is None:
            known = ", ".join(_FORMATS)
            raise _refused("type", where, f"{kind} is not supported; use one of {known}")
        return lower(self, form, where)

    def rule(self, body: str, *, is_lazy: bool = False) -> str:
        """Adds a rule and returns its name."""
        name = f"r{len(self.rules)}"
        self.rules.append(f"{name}{'[lazy]' if is_lazy else ''}: {body}")
        return name

    def const_string(self, form: Mapping[str, Any], where: str) -> str:
        return _literal(_string(form, "value", where)) or '""'

    def json_schema(self, form: Mapping[str, Any], where: str) -> str:
        schema = form.get("json_schema", True)
        if not isinstance(schema, dict | bool):
            raise _refused("json_schema", where, "must be an object or a boolean")
        return self.rule("%json " + json.dumps(self._with_form(schema)))

    def text(self, form: Mapping[str, Any], where: str, end: str = "") -> str:
        """Returns a regex, or any text, without its `excludes`, followed by `end`."""
        text = _TEXT
        if form["type"] == "regex":
            text = f"/{_escaped(_string(form, 'pattern', where))}/"
        excludes = _list(form, "excludes", where) if form.get("excludes") else ()
        if not excludes:
            return f"{text} {_literal(end)}".rstrip()
        parts = [text]
        for part in excludes:
            if not isinstance(part, str) or not part:
                raise _refused("excludes", where, "must be texts that are not empty")
            literal = "".join(re.escape(char) if char != "\n" else r"\n" for char in part)
            parts.append(f"~/(.|\\n)*{_escaped(literal)}(.|\\n)*/")
        # The text and its end are one terminal, because a lexer could not find the border between
        # two.
        name = f"T{len(self.rules)}"
        self.rules.append(f"{name}: ({' & '.join(parts)}) {_literal(end)}")
        return name

    def sequence(self, form: Mapping[str, Any], where: str) -> str:
        return self.rule(" ".join(self._elements(form, where)))

    def either(self, form: Mapping[str, Any], where: str) -> str:
        return self.rule(" | ".join(self._elements(form, where)))

    def _elements(self, form: Mapping[str, Any], where: str) -> list[str]:
        elements = _list(form, "elements", where)
        return [self.write(item, f"{where}.elements.{i}") for i, item in enumerate(elements)]

    def tag(self, form: Mapping[str, Any], where: str, trigger: str = "") -> str:
        """Returns the tag without the `trigger` with which it begins."""
        begin, end = _string(form, "begin", where), _string(form, "end", where)
        content = form.get("content")
        begin = begin[len(trigger) :]
        body = self._tag_body(content, f"{where}.content", end)
        return self.rule(f"{_literal(begin)} {body}")

    def _tag_body(self, content: Any, where: str, end: str) -> str:
        kind = content.get("type") if isinstance(content, dict) else None
        if kind in ("any_text", "regex") and content.get("excludes"):
            return self.text(content, where, end)
        if kind == "any_text" and end:
            return self.rule(f"{_TEXT} {_literal(end)}", is_lazy=True)
        return f"{self.write(content, where)} {_literal(end)}"

    def triggered_tags(self, form: Mapping[str, Any], where: str) -> str:
        triggers = _list(form, "triggers", where)
        tags = _list(form, "tags", where)
        by_trigger: dict[str, list[str]] = {}
        for index, tag in enumerate(tags):
            place = f"{where}.tags.{index}"
            begin = _string(tag if isinstance(tag, dict) else {}, "begin", place)
            found = [t for t in triggers if isinstance(t, str) and t and begin.startswith(t)]
            if not found:
                raise _refused("triggers", where, f"none begins {place}.begin")
            trigger = max(found, key=len)
            by_trigger.setdefault(trigger, []).append(self.tag(tag, place, trigger))
        options = []
        for trigger, rests in by_trigger.items():
            head = self.rule(f"{_TEXT} {_literal(trigger)}", is_lazy=True)
            options.append(f"{head} ({' | '.join(rests)})")
        one = self.rule(" | ".join(options))
        if form.get("stop_after_first"):
            return one if form.get("at_least_one") else self.rule(f"{one} | {_TEXT}")
        return self.rule(f"{one}{'+' if form.get('at_least_one') else '*'} {_TEXT}")

    def tags_with_separator(self, form: Mapping[str, Any], where: str) -> str:
        tags = _list(form, "tags", where)
        one = self.rule(" | ".join(self.tag(t, f"{where}.tags.{i}") for i, t in enumerate(tags)))
        separator = _literal(_string(form, "separator", where))
        several = one if form.get("stop_after_first") else f"{one} ({separator} {one})*"
        return self.rule(several if form.get("at_least_one") else f"({several})?")


_FORMATS: dict[str, Callable[[_Writer, Mapping[str, Any], str], str]] = {
    "const_string": _Writer.const_string,
    "json_schema": _Writer.json_schema,
    "regex": _Writer.text,
    "any_text": _Writer.text,
    "sequence": _Writer.sequence,
    "or": _Writer.either,
    "tag": _Writer.tag,
    "triggered_tags": _Writer.triggered_tags,
    "tags_with_separator": _Writer.tags_with_separator,
}


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _escaped(pattern: str) -> str:
    """Returns a regex for use between slashes: escapes slashes and line breaks."""
    pattern = re.sub(r"(\\.)|/", lambda match: match[1] or r"\/", pattern, flags=re.DOTALL)
    return pattern.replace("\n", r"\n")


def _string(form: Mapping[str, Any], name: str, where: str) -> str:
    value = form.get(name)
    if not isinstance(value, str):
        raise _refused(name, where, "must be a string")
    return value


def _list(form: Mapping[str, Any], name: str, where: str) -> Sequence[Any]:
    value = form.get(name)
    if not isinstance(value, list) or not value:
        raise _refused(name, where, "must be a list that is not empty")
    return value


def _refused(name: str, where: str, reason: str) -> GrammarRefused:
    return GrammarRefused(reason, keyword=name, where=f"{where}.{name}" if where else name)
