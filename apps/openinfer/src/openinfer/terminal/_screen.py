"""`Screen`: the terminal of a conversation.

Only responses go to standard output, so that they can be piped. Reasoning, calls, results and
remarks go to standard error.

Control characters in the text of a model, a tool or a server are spelled out: characters that move
the cursor, or erase or reorder text. Otherwise a call could hide its command from the user who
decides whether to run it.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping
from typing import TextIO

_STYLES = {"dim": "\x1b[2m", "bold": "\x1b[1m", "red": "\x1b[31m"}
_RESET = "\x1b[0m"
_MAX_RESULT_LINES = 20
_MARK = '"""'
# C0 and C1 except newline and tab, marks of text direction, and surrogates.
_COMMANDS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_SURROGATES = re.compile(r"[\ud800-\udfff]")


class Screen:
    """Reads the user's lines and writes the parts of a conversation.

    Attributes:
        is_interactive: whether standard input is a terminal.
        can_ask: whether the user also sees standard error, where calls are shown.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.is_interactive = sys.stdin.isatty()
        self.can_ask = self.is_interactive and sys.stderr.isatty()
        is_plain = bool(environment.get("NO_COLOR")) or environment.get("TERM") == "dumb"
        self._has_styles = sys.stderr.isatty() and not is_plain
        self._open_stream: TextIO | None = None
        """The stream whose last line is not ended yet."""
        self._remember = _prepare_line_editing() if self.is_interactive else None

    def read_line(self) -> str | None:
        """Returns the user's next text: "" after Ctrl-C on a terminal, None at the end of input.

        A text is one line, or the lines between triple quotation marks. Pasted text is one text if
        the terminal marks pastes.
        """
        try:
            line = self._read("> ")
            if line is not None and line.startswith(_MARK):
                line = self._read_on(line.removeprefix(_MARK))
        except KeyboardInterrupt:
            self._drop_line()
            return ""
        if line and self._remember is not None:
            self._remember(line)
        return line

    def ask(self, question: str) -> str:
        """Asks the user; returns the reply in lower case, or "" if there is none.

        Characters typed before the question was shown are dropped.
        """
        self.end_line()
        _drop_type_ahead()
        try:
            return (self._read(question) or "").strip().lower()
        except KeyboardInterrupt:
            self._drop_line()
            return ""

    def _read_on(self, line: str) -> str:
        """Returns the lines up to the one that ends with the mark, or to the end of the input."""
        lines = []
        while not line.rstrip().endswith(_MARK):
            lines.append(line)
            more = self._read(". ")
            if more is None:
                return "\n".join(lines).strip("\n")
            line = more
        return "\n".join([*lines, line.rstrip().removesuffix(_MARK)]).strip("\n")

    def _drop_line(self) -> None:
        """Drops a line after Ctrl-C. Without a terminal it raises the interrupt again."""
        if not self.is_interactive:
            raise KeyboardInterrupt
        print(file=sys.stderr)

    def _read(self, prompt: str) -> str | None:
        self.end_line()
        if not self.is_interactive:
            prompt = ""
        elif not sys.stdout.isatty():
            print(prompt, end="", file=sys.stderr, flush=True)
            prompt = ""
        try:
            return input(prompt)
        except EOFError:
            return None

    def content(self, text: str) -> None:
        """Writes a part of a response; control characters are kept if no terminal shows it."""
        is_shown = self.is_interactive or sys.stdout.isatty()
        self._write(_spelled(text, _COMMANDS if is_shown else _SURROGATES), sys.stdout)

    def reasoning(self, text: str) -> None:
        """Writes a part of the reasoning."""
        self._write(_spelled(text), sys.stderr, "dim")

    def remark(self, text: str) -> None:
        """Writes a line about the conversation."""
        self.end_line()
        print(self._styled(_spelled(text), "dim"), file=sys.stderr, flush=True)

    def error(self, text: str) -> None:
        """Writes a line about an error."""
        self.end_line()
        print(self._styled(_spelled(text), "red"), file=sys.stderr, flush=True)

    def call(self, name: str, text: str) -> None:
        """Writes a call and the command that it would run."""
        self.end_line()
        print(self._styled(_spelled(f"[{name}]"), "bold"), file=sys.stderr)
        print(_indented(_spelled(text)), file=sys.stderr, flush=True)

    def result(self, text: str) -> None:
        """Writes a call's result; a long one is cut on the screen."""
        lines = _spelled(text).splitlines()
        if len(lines) > _MAX_RESULT_LINES:
            num_more = len(lines) - _MAX_RESULT_LINES
            lines[_MAX_RESULT_LINES:] = [f"... and {num_more} more lines"]
        self.remark(_indented("\n".join(lines)))

    def end_line(self) -> None:
        """Ends the current line, if one is open."""
        if self._open_stream is not None:
            print(file=self._open_stream, flush=True)
            self._open_stream = None

    def _write(self, text: str, stream: TextIO, style: str | None = None) -> None:
        if not text:
            return
        if self._open_stream is not stream:
            self.end_line()
        print(self._styled(text, style), end="", file=stream, flush=True)
        self._open_stream = None if text.endswith("\n") else stream

    def _styled(self, text: str, style: str | None) -> str:
        if style is None or not self._has_styles:
            return text
        return f"{_STYLES[style]}{text}{_RESET}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())


def _spelled(text: str, characters: re.Pattern[str] = _COMMANDS) -> str:
    """Returns the text with these characters escaped as in a Python string."""
    return characters.sub(lambda found: ascii(found[0])[1:-1], text.replace("\r\n", "\n"))


def _drop_type_ahead() -> None:
    try:
        import termios
    except ImportError:  # no POSIX terminal
        return
    termios.tcflush(sys.stdin, termios.TCIFLUSH)


def _prepare_line_editing() -> Callable[[str], None]:
    """Enables line editing for `input`; returns a function that adds a line to its history."""
    try:
        import readline
    except ImportError:  # not every Python has it
        return lambda line: None
    # Otherwise replies to questions would enter the history.
    readline.set_auto_history(False)
    return readline.add_history
