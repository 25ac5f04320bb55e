r"""The reasoning parsers: `<think>` reasoning `</think>` content.

    start -> reasoning -> after -> content
          \______________________/      no <think> at the start: all is content

Newlines around both markers belong to neither side. Kimi and DeepSeek may begin their calls before
the reasoning is closed: the first token of the calls ends the reasoning as well.
"""

import re
from collections.abc import Callable

from openinfer_text.parsers import _deepseek as deepseek
from openinfer_text.parsers import _kimi as kimi
from openinfer_text.parsers._output_parser import ParseContext, StatefulStream
from openinfer_text.parsers._pieces import BLANK, Content, Piece, Reasoning, beginning_of, end_of

_OPEN, _CLOSE = "<think>", "</think>"
_NEWLINES = re.compile(r"\n*")


class ThinkParser:
    """Reasoning between `<think>` and `</think>`, only at the start of an output.

    The open turn of the prompt shows whether the prompt has opened the reasoning. Without an opener
    in the prompt or the output, the whole output is content.
    """

    markers = (_OPEN, _CLOSE)
    reasoning_opener = _OPEN
    reasoning_closer = _CLOSE

    def __init__(self, name: str, claims: Callable[[str], bool], calls_begin: str = "") -> None:
        """Makes the parser of a family of models.

        Args:
            name: name of the parser.
            claims: returns whether a template is of this family.
            calls_begin: token that also ends the reasoning, if the request has tools.
        """
        self.name = name
        self._claims = claims
        self._calls_begin = calls_begin

    def claims(self, template: str, /) -> bool:
        """Returns whether a template is of this family."""
        return self._claims(template)

    def start(self, context: ParseContext, /) -> "_ThinkStream":
        """Returns a parser for one output."""
        is_open = context.turn.rfind(_OPEN) > context.turn.rfind(_CLOSE)
        return _ThinkStream(self._calls_begin if context.tools else "", is_open=is_open)


def _is_deepseek(template: str) -> bool:
    return "<｜Assistant｜>" in template


def _is_kimi(template: str) -> bool:
    return "<|im_middle|>" in template or kimi.SECTION_BEGIN in template


QWEN3 = ThinkParser(
    "qwen3",
    lambda template: (
        _OPEN in template
        and _CLOSE in template
        and not (_is_deepseek(template) or _is_kimi(template))
    ),
)
# A template that removes `</think>` from earlier messages shows that the model writes reasoning,
# even if the template never opens it.
DEEPSEEK_R1 = ThinkParser(
    "deepseek_r1",
    lambda template: _CLOSE in template and _is_deepseek(template),
    deepseek.SECTION_BEGIN,
)
KIMI_K2 = ThinkParser(
    "kimi_k2",
    lambda template: _OPEN in template and _is_kimi(template),
    kimi.SECTION_BEGIN,
)


class _ThinkStream(StatefulStream):
    def __init__(self, calls_begin: str, *, is_open: bool) -> None:
        super().__init__()
        self._enders = (_CLOSE, calls_begin) if calls_begin else (_CLOSE,)
        self._read = self._read_leading if is_open else self._read_start

    def finish(self) -> list[Piece]:
        text = self._take(len(self._text))
        if not text:
            return []
        if self._read in (self._read_leading, self._read_reasoning):
            return [Reasoning(text)]
        return [Content(text)]

    def _read_start(self, pieces: list[Piece]) -> bool:
        self._seen = end_of(BLANK, self._text, self._seen)
        if self._text.startswith(_OPEN, self._seen):
            self._take(self._seen + len(_OPEN))
            self._read = self._read_leading
            return True
        if _OPEN.startswith(self._text[self._seen : self._seen + len(_OPEN)]):
            return False
        self._go_back()
        self._read = self._read_content
        return True

    def _read_leading(self, pieces: list[Piece]) -> bool:
        self._skip_newlines(self._read_reasoning)
        return True

    def _read_reasoning(self, pieces: list[Piece]) -> bool:
        found = [(at, e) for e in self._enders if (at := self._text.find(e, self._seen)) >= 0]
        if found:
            end, ender = min(found)
        else:
            end = min(beginning_of(e, self._text, self._seen) for e in self._enders)
        # Newlines are held back: they are dropped if the end mark follows.
        num_shown = len(self._text[self._seen : end].rstrip("\n"))
        if num_shown:
            pieces.append(Reasoning(self._take(self._seen + num_shown)))
        if not found:
            self._seen = end
            return False
        if ender == _CLOSE:
            self._take(end + len(_CLOSE))
            self._read = self._read_after
        else:
            # The tool parser reads the calls.
            self._take(end)
            self._read = self._read_content
        return True

    def _read_after(self, pieces: list[Piece]) -> bool:
        self._skip_newlines(self._read_content)
        return True

    def _skip_newlines(self, read: Callable[[list[Piece]], bool]) -> None:
        """Drops newlines; the state `read` reads the first other character."""
        end = end_of(_NEWLINES, self._text, self._seen)
        self._take(end)
        if end < len(self._text):
            self._read = read

    def _read_content(self, pieces: list[Piece]) -> bool:
        pieces.append(Content(self._take(len(self._text))))
        return False
