r"""The `qwen3` reasoning parser: `<think>` reasoning `</think>` content.

    start -> reasoning -> behind -> content
          \_______________________/     no <think> at the start: all is content

The newlines that templates put around both markers belong to neither side.
"""

from openinfer_text._parser import ParseContext, StatefulStream
from openinfer_text._pieces import Content, Piece, Reasoning, beginning_of

_OPEN, _CLOSE = "<think>", "</think>"


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
        self._read = self._read_reasoning if is_open else self._read_start
        self._has_reasoning = False

    def finish(self) -> list[Piece]:
        text, self._text = self._text, ""
        if not text:
            return []
        if self._read == self._read_reasoning:
            return [Reasoning(text)]
        return [] if self._read == self._read_behind else [Content(text)]

    def _read_start(self, pieces: list[Piece]) -> bool:
        text = self._text.lstrip()
        if text.startswith(_OPEN):
            self._text = text[len(_OPEN) :]
            self._read = self._read_reasoning
            return True
        if _OPEN.startswith(text):
            return False
        self._read = self._read_content
        return True

    def _read_reasoning(self, pieces: list[Piece]) -> bool:
        text = self._text if self._has_reasoning else self._text.lstrip("\n")
        end = text.find(_CLOSE)
        shown = text[: beginning_of(_CLOSE, text) if end < 0 else end].rstrip("\n")
        if shown:
            self._has_reasoning = True
            pieces.append(Reasoning(shown))
        if end < 0:
            self._text = text[len(shown) :]
            return False
        self._text = text[end + len(_CLOSE) :]
        self._read = self._read_behind
        return True

    def _read_behind(self, pieces: list[Piece]) -> bool:
        self._text = self._text.lstrip("\n")
        if not self._text:
            return False
        self._read = self._read_content
        return True

    def _read_content(self, pieces: list[Piece]) -> bool:
        pieces.append(Content(self._text))
        self._text = ""
        return False
