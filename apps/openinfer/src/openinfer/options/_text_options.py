"""The options of the checkpoint's text, from flags to `TextModel.from_folder`."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from openinfer.errors import UsageError
from openinfer_text import TextModel, check_parser


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """What an operator decides about templates and parsers."""

    chat_template: str | None = None
    """Jinja source, not a path."""
    tool_parser: str = "auto"
    reasoning_parser: str = "auto"
    tokenizer_backend: Literal["auto", "huggingface"] = "auto"

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
            tokenizer_backend=values.get("tokenizer_backend", "auto"),
        )
        # An unknown name is refused before anything is loaded.
        check_parser("tool", options.tool_parser)
        check_parser("reasoning", options.reasoning_parser)
        return options

    def load(self, folder: str | Path) -> TextModel:
        """The text model of a checkpoint folder."""
        return TextModel.from_folder(
            folder,
            chat_template=self.chat_template,
            tool_parser=self.tool_parser,
            reasoning_parser=self.reasoning_parser,
            is_accelerated=self.tokenizer_backend == "auto",
            verdict_folder=_verdict_folder(),
        )


def _verdict_folder() -> Path | None:
    """Where the verdicts on tokenizers are kept; None where there is no home."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # the specification has relative ones ignored
        try:
            root = Path.home() / ".cache"
        except RuntimeError:
            return None
    return root / "openinfer" / "tokenizers"


def read_template(path: str | None) -> str | None:
    """The Jinja source in a file, or None without one.

    Raises:
        UsageError: the file is unreadable.
    """
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"chat template {path}: {error}") from error
