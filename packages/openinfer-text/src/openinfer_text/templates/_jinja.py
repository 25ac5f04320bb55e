"""Jinja's sandbox as transformers sets it up: the definition of what a chat template renders.

Templates come with checkpoints and are foreign programs: they run in the immutable sandbox, which
forbids underscore attributes, changes to what it is given, and ranges of more than 100,000 items.
"""

import json
import re
import threading
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from openinfer_text.errors import TemplateError

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def sandbox() -> ImmutableSandboxedEnvironment:
    """An environment that renders as transformers does."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    environment.globals["namespace"] = _Namespace
    return environment


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}`: marks what the assistant says, for training; here its body alone."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it this way

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A block of its own scope, as transformers renders it: assignments inside stay inside.
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        text: str = caller()
        return text


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace, not assignable by underscore names, which are Python's own."""

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace cannot hold the name {name!r}")
        super().__setitem__(name, value)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The filter of that name: JSON as Python writes it.

    Jinja's own escapes for HTML, which no model has seen in training.
    """
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    # Half a surrogate pair, which a model can write into a call, has no UTF-8: it stays escaped.
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def raise_exception(message: str) -> NoReturn:
    """The function of that name: the template refuses the messages."""
    raise jinja2.TemplateError(message)


class Clock(threading.local):
    """The time that templates see; stands still where renderings are compared."""

    now: datetime | None = None


CLOCK = Clock()


def strftime_now(format: str) -> str:
    """The function of that name: local time."""
    return (CLOCK.now or datetime.now()).strftime(format)


def run(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Renders a template.

    Raises:
        TemplateError: whatever went wrong inside.
    """
    try:
        return template.render(variables)
    except jinja2.TemplateError as error:
        raise TemplateError(error.message or type(error).__name__) from error
    except Exception as error:  # a template can raise whatever its filters and operators raise
        raise TemplateError(f"{type(error).__name__}: {error}") from error
