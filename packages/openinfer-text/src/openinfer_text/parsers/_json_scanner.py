"""`JsonScanner`: finds the end of a JSON object in a growing text."""

import re

_OUTSIDE = re.compile(r'["{}\[\]]|[^\s,:0-9A-Za-z.+\-]')
_INSIDE = re.compile(r'["\\\x00-\x1f]')


class JsonScanner:
    """Follows the brackets and strings of one object or array; does not check anything else.

    Attributes:
        broken_at: position in the last text of a character that JSON does not allow there, such
            as a bare line break inside a string. Text after it was not read.
    """

    def __init__(self, *, depth: int = 0) -> None:
        """Starts before an object, or inside `depth` nested ones."""
        self.broken_at: int | None = None
        self._depth = depth
        self._is_string = False
        self._is_escaped = False

    def find_end(self, text: str, at: int = 0) -> int | None:
        """Reads `text[at:]` and returns the position after the last bracket, None without it."""
        while at < len(text):
            if self._is_escaped:
                self._is_escaped = False
                at += 1
                continue
            found = (_INSIDE if self._is_string else _OUTSIDE).search(text, at)
            if found is None:
                return None
            at = found.end()
            if not self._accept(found.group()):
                self.broken_at = found.start()
                return None
            if self._depth == 0:
                return at
        return None

    def _accept(self, char: str) -> bool:
        if char == '"':
            self._is_string = not self._is_string
        elif self._is_string:
            self._is_escaped = char == "\\"
            return self._is_escaped
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
        else:
            return False
        return True
