"""The options of the checkpoint's text, from flags to `TextModel.from_folder`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from openinfer._prepare import read_template
from openinfer_text import TextModel, check_parser


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """What an operator decides about templates and parsers."""

    chat_template: str | None = None
    """Jinja source, not a path."""
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "TextOptions":
        """Takes options by `FLAGS` destination.

        Raises:
            UsageError: the template's file is unreadable.
            ParserError: a parser is not installed.
        """
        options = cls(
            chat_template=read_template(values.get("chat_template")),
            tool_parser=values.get("tool_call_parser", "auto"),
            reasoning_parser=values.get("reasoning_parser", "auto"),
        )
        # An unknown name is refused before anything is loaded.
        check_parser("tool", options.tool_parser)
        check_parser("reasoning", options.reasoning_parser)
        return options

    def load(self, folder: str | Path) -> TextModel:
        """The text model of a checkpoint folder."""
        return TextModel.from_folder(folder, **asdict(self))
