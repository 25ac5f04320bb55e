"""How a protocol that is translated to a chat calls the chat's fields."""

import re
from collections.abc import Mapping, Sequence

_TOOL = re.compile(r"tools\[(\d+)\]")
_MESSAGE = re.compile(r"messages\b.*")
_MENTION = re.compile(r"(?<![\w.])[a-z]+_\w+(?:\.\w+)*")
_BORDER = re.compile(r"(?=[.[])")
TOOL = "tools[]"
"""Stands for any tool in the names of `FieldNames`."""


class FieldNames:
    """Names of a chat's fields, and what the client that sent another body calls them."""

    def __init__(self, names: Mapping[str, str], tool_places: Sequence[int] = ()) -> None:
        """Keeps them.

        Args:
            names: fields of a chat, or what they begin with. `messages` stands for all within: what
                a message was made of is not said.
            tool_places: of each of the chat's tools, its index among the client's.
        """
        self._names = names
        self._tool_places = tool_places

    def of(self, field: str) -> str:
        """The client's name of a chat's field; a name that is no chat's stays."""
        if _MESSAGE.fullmatch(field):
            return self._names["messages"]
        tool = _TOOL.match(field)
        general = field if tool is None else TOOL + field[tool.end() :]
        parts = _BORDER.split(general)
        for end in range(len(parts), 0, -1):
            own = self._names.get("".join(parts[:end]))
            if own is not None:
                place = "" if tool is None else f"tools[{self._tool_places[int(tool[1])]}]"
                return own.replace(TOOL, place) + "".join(parts[end:])
        return field

    def reworded(self, message: str, field: str | None) -> str:
        """A message about a chat's field in the client's words.

        Args:
            message: it may begin with the field. Other fields are told from words by their `_`.
            field: a chat's, None if the message is about none.
        """
        if field and message.startswith(field):
            own, rest = self.of(field), message[len(field) :]
        else:
            own, rest = "", message
        return own + _MENTION.sub(lambda mention: self.of(mention[0]), rest)
