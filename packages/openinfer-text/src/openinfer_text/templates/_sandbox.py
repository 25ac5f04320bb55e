"""Jinja's sandbox as transformers sets it up; it defines the text that a chat template renders.

Templates come with checkpoints and are untrusted programs. They run in the immutable sandbox, which
forbids underscore attributes, changes to the template's arguments, and ranges of more than 100,000
items. `_limits` bounds their time and memory.
"""

import json
import re
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from openinfer_text.errors import TemplateError
from openinfer_text.templates import _limits as limits

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """An environment that renders as transformers does, within the limits of `_limits`."""

    code_generator_class = limits.CountingGenerator
    concat = staticmethod(limits.bounded_concat)
    add = staticmethod(limits.bounded_add)
    join = staticmethod(limits.bounded_join)
    count_block = staticmethod(limits.count_block)
    intercepted_binops = frozenset({"*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
        )
        limits.guard_filters(self.filters)
        self.filters["tojson"] = tojson
        self.globals["raise_exception"] = raise_exception
        self.globals["strftime_now"] = strftime_now
        self.globals["namespace"] = _Namespace
        del self.globals["lipsum"]  # makes random text of any length, which no chat needs

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Returns the result of an operation whose size is within the limits."""
        limits.check_operation(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of a call whose size is within the limits."""
        limits.check_call(function, args, kwargs)
        return super().call(context, function, *args, **kwargs)


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}`: marks the assistant's text for training; renders its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja declares it this way

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # A block with a scope of its own, as in transformers: assignments inside stay inside.
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Any) -> str:
        text: str = caller()
        return text


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace, which refuses underscore names: they are Python's own."""

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
    """Returns JSON as Python writes it: the filter `tojson`.

    Jinja's own filter escapes for HTML, which no model has seen in training.
    """
    limits.check_json_layout(indent, separators)
    text = json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    # Half of a surrogate pair, which a model can write into a call, has no UTF-8: it stays escaped.
    return _LONE_SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def raise_exception(message: str) -> NoReturn:
    """Refuses the messages: the function `raise_exception` of templates."""
    raise jinja2.TemplateError(message)


def strftime_now(format: str) -> str:
    """Returns the local time: the function `strftime_now` of templates."""
    return datetime.now().strftime(format)


def compile_template(environment: TemplateSandbox, source: str) -> jinja2.Template:
    """Compiles a template.

    Raises:
        jinja2.TemplateSyntaxError: it is not valid Jinja.
        TemplateError: Python refuses what Jinja makes of it, such as 100 nested loops.
    """
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError:
        raise
    except RecursionError as error:
        raise TemplateError("the template is nested too deeply") from error
    except Exception as error:  # both compilers may raise anything on an untrusted program
        raise TemplateError(f"{type(error).__name__}: {error}") from error


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Renders a template.

    Raises:
        TemplateError: the template refused, failed, or went beyond a limit.
    """
    limits.start_metering()
    try:
        return template.render(variables)
    except jinja2.TemplateError as error:
        raise TemplateError(error.message or type(error).__name__) from error
    except Exception as error:  # a template can raise whatever its filters and operators raise
        raise TemplateError(f"{type(error).__name__}: {error}") from error
