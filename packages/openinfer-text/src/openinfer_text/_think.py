r"""The `qwen3` reasoning parser: `<think>` reasoning `</think>` content.

    start -> reasoning -> behind -> content
          \_______________________/     no <think> at the start: all is content

The newlines that templates put around both markers belong to neither side.
"""

import re
from collections.abc import Callable

from openinfer_text._parser import ParseContext, StatefulStream
from openinfer_text._pieces import BLANK, Content, Piece, Reasoning, beginning_of, end_of

_OPEN, _CLOSE = "<think>", "</think>"
_NEWLINES = re.compile(r"\n*")


class ThinkParser:
    """Reasoning between `<think>` and `</think>`, at the start of an answer and only there.

    Whether the prompt has opened it already is seen in the turn that it leaves open.
    """

    name = "qwen3"
    markers = (_OPEN, _CLOSE)
    reasoning_opener = _OPEN
    reasoning_closer = _CLOSE

    def claims(self, template: str, /) -> bool:
        """A template that writes both markers."""
        return _OPEN in template and _CLOSE in template

    def start(self, context: ParseContext, /) -> "_ThinkStream":
        """A parser for one answer."""
        return _ThinkStream(is_open=context.turn.rfind(_OPEN) > context.turn.rfind(_CLOSE))


class _ThinkStream(StatefulStream):
    def __init__(self, *, is_open: bool) -> None:
        super().__init__()
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
        close = self._text.find(_CLOSE, self._seen)
        end = beginning_of(_CLOSE, self._text, self._seen) if close < 0 else close
        # Newlines are held: they are dropped if the end mark follows.
        num_shown = len(self._text[self._seen : end].rstrip("\n"))
        if num_shown:
            pieces.append(Reasoning(self._take(self._seen + num_shown)))
        if close < 0:
            self._seen = end
            return False
        self._take(close + len(_CLOSE))
        self._read = self._read_behind
        return True

    def _read_behind(self, pieces: list[Piece]) -> bool:
        self._skip_newlines(self._read_content)
        return True

    def _skip_newlines(self, read: Callable[[list[Piece]], bool]) -> None:
        """Drops newlines; `read` goes on with what is none."""
        end = end_of(_NEWLINES, self._text, self._seen)
        self._take(end)
        if end < len(self._text):
            self._read = read

    def _read_content(self, pieces: list[Piece]) -> bool:
        pieces.append(Content(self._take(len(self._text))))
        return False
