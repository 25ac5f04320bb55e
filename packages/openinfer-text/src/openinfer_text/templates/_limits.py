"""Limits on the resources of a chat template: CPU time, output length, sizes of single values.

A template is a program that a stranger wrote. Jinja's sandbox keeps it away from the machine, but
not from looping for hours or from filling the memory. Compiled templates count their blocks (loop
and macro bodies), and every counted block may end the render. An operation inside of C code cannot
be ended, so the ones that grow a value by more than its operands are checked beforehand.

Two things are not bounded: the sum of all values that a template keeps, and lists that hold the
same list many times over, several levels deep, when they are printed or compared. The limits
therefore stop faulty templates, but not an attacker.
"""

import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, MacroRef
from jinja2.runtime import str_join

MAX_SECONDS = 2.0
"""CPU time of one render. 200 messages take 1 to 5 ms on one core of a small virtual machine."""
MAX_CHARS = 1 << 26
"""Maximum number of characters of a text that a template makes, as output or as a value."""
MAX_ITEMS = 1_000_000
"""Maximum number of items of a repeated list, and maximum width to which text may be padded."""
_MAX_INT_BITS = 1 << 14
_MAX_JSON_LAYOUT = 100
"""Maximum number of characters of JSON's indent, and of its separators."""
_BLOCKS_PER_CHECK = 16
_WIDTHS = re.compile(r"\d{6,}")


class TemplateLimitError(jinja2.TemplateError):
    """A template went beyond a limit."""


class _Meter(threading.local):
    """The number of counted blocks, and the time limit, of the render on this thread."""

    num_blocks = 0
    deadline = float("inf")


_meter = _Meter()


def start_metering() -> None:
    """Starts the time limit of the render that begins on this thread."""
    _meter.num_blocks = 0
    _meter.deadline = time.thread_time() + MAX_SECONDS


def count_block() -> bool:
    """Counts a block of the render on this thread; always true.

    Raises:
        TemplateLimitError: the time is over.
    """
    _meter.num_blocks += 1
    if _meter.num_blocks % _BLOCKS_PER_CHECK == 0 and time.thread_time() > _meter.deadline:
        raise TemplateLimitError(f"the template takes more than {MAX_SECONDS:g} s")
    return True


class CountingGenerator(CodeGenerator):
    """Compiles templates that count the bodies of their loops and macros.

    The environment must have `count_block`, `add` and `join`.
    """

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._counted: set[int] = set()
        """Identities of the lists of nodes that are such bodies."""

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        if id(nodes) in self._counted:
            self.writeline("environment.count_block()")
        super().blockvisit(nodes, frame)

    def macro_body(
        self, node: nodes.Macro | nodes.CallBlock, frame: Frame
    ) -> tuple[Frame, MacroRef]:
        self._counted.add(id(node.body))
        return super().macro_body(node, frame)

    def visit_Add(self, node: nodes.BinExpr, frame: Frame) -> None:
        self.write("environment.add(")
        self.visit(node.left, frame)
        self.write(", ")
        self.visit(node.right, frame)
        self.write(")")

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        self._counted.add(id(node.body))
        if node.test is not None:
            # The condition of a loop runs for items that never reach the loop's body.
            counts = nodes.Call(nodes.EnvironmentAttribute("count_block"), [], [], None, None)
            node.test = nodes.And(counts, node.test)
        super().visit_For(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.join((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


def bounded_concat(parts: Iterable[str]) -> str:
    """Joins pieces of output.

    Raises:
        TemplateLimitError: they are longer than `MAX_CHARS`.
    """
    pieces, length = [], 0
    for piece in parts:
        length += len(piece)
        if length > MAX_CHARS:
            raise _too_long()
        pieces.append(piece)
    return "".join(pieces)


def bounded_add(left: Any, right: Any) -> Any:
    """Returns `left + right`.

    Raises:
        TemplateLimitError: it is a text or a list of more than the bounds, which are checked
            afterwards: a sum is at most twice as long as they allow.
    """
    result = left + right
    if isinstance(result, str):
        if len(result) > MAX_CHARS:
            raise _too_long()
    elif isinstance(result, list | tuple):
        _check_items(result, 1)
    return result


def bounded_join(values: Sequence[Any]) -> str:
    """Joins the operands of `~`.

    Raises:
        TemplateLimitError: they are longer than `MAX_CHARS`.
    """
    if sum(len(value) for value in values if isinstance(value, str)) > MAX_CHARS:
        raise _too_long()
    return str_join(values)


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Checks that the result of `*`, `**` or `%` is of a reasonable size.

    Raises:
        TemplateLimitError: it is not.
    """
    if operator == "%":
        if isinstance(left, str):
            check_format(left, right if isinstance(right, tuple) else (right,))
    elif isinstance(left, int) and isinstance(right, int):
        factor = right if operator == "**" else 1
        bits = left.bit_length() * factor + (right.bit_length() if operator == "*" else 0)
        if bits > _MAX_INT_BITS:
            raise TemplateLimitError("the template computes a number that is too large")
    elif operator == "*":
        for value, count in ((left, right), (right, left)):
            if isinstance(value, str) and isinstance(count, int):
                if len(value) * count > MAX_CHARS:
                    raise _too_long()
            elif isinstance(value, list | tuple) and isinstance(count, int):
                _check_items(value, count)


def check_format(text: str, arguments: Iterable[Any]) -> None:
    """Checks the widths in a format string.

    Raises:
        TemplateLimitError: it, or one of its arguments, pads to more than `MAX_ITEMS`.
    """
    if any(int(width) > MAX_ITEMS for width in _WIDTHS.findall(text)):
        raise _too_long()
    if "*" in text or "{" in text:
        _check_counts(arguments)


def check_json_layout(indent: int | str | None, separators: tuple[str, str] | None) -> None:
    """Checks the texts that JSON repeats for each of its items.

    Raises:
        TemplateLimitError: one of them is longer than `_MAX_JSON_LAYOUT`.
    """
    width = indent if isinstance(indent, int) else len(indent or "")
    if max(width, *map(len, separators or ("", ""))) > _MAX_JSON_LAYOUT:
        raise _too_long()


def check_call(function: Any, arguments: Sequence[Any], named: dict[str, Any]) -> None:
    """Checks that the call of a text method makes a text of a reasonable size.

    Raises:
        TemplateLimitError: the text would be too long.
    """
    text = getattr(function, "__self__", None)
    if text is None:
        function = getattr(function, "__wrapped__", None)  # the sandbox wraps `str.format`
        text = getattr(function, "__self__", None)
    if not isinstance(text, str):
        return
    values = [*arguments, *named.values()]
    name = function.__name__
    if name in ("format", "format_map"):
        check_format(text, values)
    elif name == "replace":
        check_replacement(text, values)
    elif name == "join":
        _check_join(text, values)
    else:
        _check_counts(values)


def check_replacement(text: str, values: Sequence[Any]) -> None:
    """Checks the length of a text after a replacement.

    Raises:
        TemplateLimitError: it is longer than `MAX_CHARS`.
    """
    old, new = [*map(str, values[:2]), "", ""][:2]
    if len(new) > len(old) and text.count(old) * (len(new) - len(old)) + len(text) > MAX_CHARS:
        raise _too_long()


def guard_filters(filters: dict[str, Callable[..., Any]]) -> None:
    """Makes filters that grow a text check their arguments first."""
    for name in ("center", "indent", "wordwrap", "batch", "slice", "truncate", "urlize"):
        filters[name] = _guarded(filters[name], lambda values: _check_counts(values[1:]))
    filters["format"] = _guarded(
        filters["format"], lambda values: check_format(str(values[0]), values[1:])
    )
    filters["replace"] = _guarded(
        filters["replace"], lambda values: check_replacement(str(values[1]), values[2:])
    )
    filters["join"] = _guarded(
        filters["join"], lambda values: _check_join(str([*values, ""][2]), values[1:2])
    )


def _guarded(
    function: Callable[..., Any], check: Callable[[list[Any]], None]
) -> Callable[..., Any]:
    @wraps(function)
    def guard(*arguments: Any, **named: Any) -> Any:
        check([*arguments, *named.values()])
        return function(*arguments, **named)

    return guard


def _check_join(separator: str, values: Sequence[Any]) -> None:
    for items in values:
        if isinstance(items, list | tuple):
            lengths = sum(len(item) for item in items if isinstance(item, str))
            if lengths + len(separator) * len(items) > MAX_CHARS:
                raise _too_long()


def _check_items(items: Sequence[Any], count: int) -> None:
    """Checks the number of items of a repeated list, and the text in them."""
    if len(items) * count > MAX_ITEMS:
        raise _too_long()
    if count > 1:
        lengths = sum(len(item) for item in items if isinstance(item, str))
        if lengths * count > MAX_CHARS:
            raise _too_long()


def _check_counts(values: Iterable[Any]) -> None:
    if any(isinstance(value, int) and value > MAX_ITEMS for value in values):
        raise _too_long()


def _too_long() -> TemplateLimitError:
    return TemplateLimitError("the template makes a text or a list that is too long")
