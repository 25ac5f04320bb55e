"""Other protocols' names of a chat's fields, for error messages."""

import re
from collections.abc import Mapping, Sequence

_TOOL = re.compile(r"tools\[(\d+)\]")
_MESSAGE = re.compile(r"messages\b.*")
_MENTION = re.compile(r"(?<![\w.])[a-z]+_\w+(?:\.\w+)*")
_BORDER = re.compile(r"(?=[.[])")
TOOL = "tools[]"
"""Stands for any index of a tool in `FieldNames`."""


class FieldNames:
    """Translates a chat's field names into those of the client's protocol."""

    def __init__(self, names: Mapping[str, str], tool_places: Sequence[int] = ()) -> None:
        """Keeps the names.

        Args:
            names: names of a chat's fields, or their beginnings. `messages` stands for all fields
                within, because a message is not traced to the client's field.
            tool_places: for each of the chat's tools, its index among the client's tools.
        """
        self._names = names
        self._tool_places = tool_places

    def client_name(self, field: str) -> str:
        """Returns the client's name of a chat's field; other names stay."""
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

    def translate(self, message: str, field: str | None) -> str:
        """Returns a message with the client's field names.

        Args:
            message: may begin with `field`. Other field names are recognised by their underscore.
            field: the chat's field that the message is about, or None.
        """
        if field and message.startswith(field):
            own, rest = self.client_name(field), message[len(field) :]
        else:
            own, rest = "", message
        return own + _MENTION.sub(lambda mention: self.client_name(mention[0]), rest)
