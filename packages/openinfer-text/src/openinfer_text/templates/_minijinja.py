"""Chat templates in minijinja, which renders them several times as fast as Jinja.

It is another implementation of the language and differs in corners, so a template must pass two
gates: `plan_fast` reads it and refuses what is known to differ or what minijinja would let a
foreign template do (changing what it is given); then its output is compared, see `_renderer`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import minijinja
from jinja2 import meta, nodes

from openinfer_text.templates._jinja import raise_exception, strftime_now, tojson

_METHODS = frozenset(
    {
        *("count", "endswith", "find", "get", "items", "join", "keys", "lstrip", "lower"),
        *("replace", "rstrip", "split", "startswith", "strip", "upper", "values"),
    }
)  # fmt: skip
_FILTERS = frozenset(
    {
        *("count", "d", "default", "first", "items", "join", "last", "length", "list"),
        *("lower", "lstrip", "map", "reject", "rejectattr", "replace", "reverse", "rstrip"),
        *("safe", "select", "selectattr", "string", "tojson", "trim", "upper"),
    }
)  # fmt: skip
_NAMES_THAT_DIFFER = frozenset({"cycler", "debug", "joiner", "lipsum", "self"})
_STATEMENTS = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)
_GENERATION = re.compile(r"(\{%[-+]?\s*(?:end)?)generation(\s*[-+]?%\})")


class FastTemplate:
    """A template compiled by minijinja; any thread."""

    def __init__(self, source: str) -> None:
        """Compiles.

        Raises:
            minijinja.TemplateError: the source is not what minijinja understands.
        """
        # A block of its own scope is all that `generation` is when nothing is trained.
        source = _GENERATION.sub(r"\1with\2", source)
        self._environment = minijinja.Environment(
            templates={"chat": source},
            filters={"tojson": tojson},
            tests={"iterable": _is_iterable, "sequence": _is_sequence},
            globals={"raise_exception": raise_exception, "strftime_now": strftime_now},
            trim_blocks=True,
            lstrip_blocks=True,
            pycompat=True,
            debug=False,
        )
        # Compiles now rather than with the first request.
        self._environment.undeclared_variables_in_template("chat")

    def render(self, variables: Mapping[str, Any]) -> str:
        """The text.

        Raises:
            Exception: whatever minijinja or a function raised.
        """
        return self._environment.render_template("chat", **variables)


def _is_iterable(value: Any) -> bool:
    # minijinja's own takes none for iterable, and templates ask that of absent tools.
    return isinstance(value, Iterable)


def _is_sequence(value: Any) -> bool:
    # To Jinja mappings are sequences, to minijinja they are not.
    return hasattr(value, "__len__") and hasattr(value, "__getitem__")


def plan_fast(source: str, parsed: nodes.Template) -> FastTemplate | str:
    """The template in minijinja, or why it is left to Jinja."""
    for problem in _problems(parsed):
        return problem
    try:
        return FastTemplate(source)
    except minijinja.TemplateError as error:
        return f"minijinja does not understand it: {error.message}"


def _problems(parsed: nodes.Template) -> Iterator[str]:
    for call in parsed.find_all(nodes.Call):
        target = call.node
        if isinstance(target, nodes.Getattr) and target.attr not in _METHODS:
            yield f"it calls the method {target.attr!r}"
        elif not isinstance(target, nodes.Getattr | nodes.Name | nodes.ExtensionAttribute):
            yield "it calls what it computes"
    for used in parsed.find_all(nodes.Filter):
        if used.name not in _FILTERS:
            yield f"it uses the filter {used.name!r}"
    for name in sorted(meta.find_undeclared_variables(parsed) & _NAMES_THAT_DIFFER):
        yield f"it uses the name {name!r}"
    for statement in parsed.find_all(_STATEMENTS):
        yield f"it has the statement {type(statement).__name__.lower()!r}"
    for attribute in parsed.find_all(nodes.Getattr):
        if attribute.attr.startswith("_"):
            yield f"it reads the attribute {attribute.attr!r}"
