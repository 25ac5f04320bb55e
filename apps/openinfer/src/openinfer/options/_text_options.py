"""The options of templates, parsers and the tokenizer.

`openinfer_text` is imported inside the functions, so that `--help` does not wait for it.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Struct
from msgspec.structs import replace

from openinfer.errors import UsageError
from openinfer.options._option_structs import to_struct
from openinfer_engine import Option, flags_of

if TYPE_CHECKING:
    from openinfer_text import TextModel


class TextOptions(Struct, frozen=True, kw_only=True):
    """Options of templates, parsers and the tokenizer that the operator sets."""

    chat_template: Annotated[
        str | None, Option("file with a Jinja template, instead of the checkpoint's")
    ] = None
    """Jinja source of the template. The flag names a file, which `from_values` reads."""
    tool_call_parser: Annotated[
        str, Option("parser of tool calls in the output: auto (by the template), none, hermes, ...")
    ] = "auto"
    reasoning_parser: Annotated[
        str, Option("parser of reasoning in the output: auto (by the template), none, qwen3, ...")
    ] = "auto"
    tokenizer_backend: Annotated[
        Literal["auto", "huggingface"],
        Option("auto: fastokens if it gives the same ids, which is tested once for each tokenizer"),
    ] = "auto"

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> "TextOptions":
        """Returns the options with these values, by `Flag.dest`.

        Raises:
            UsageError: the template's file is unreadable.
            ParserError: a parser is not installed.
        """
        from openinfer_text import check_parser

        options = to_struct(cls, values)
        # Unknown names are refused before anything is loaded.
        check_parser("tool", options.tool_call_parser)
        check_parser("reasoning", options.reasoning_parser)
        return replace(options, chat_template=read_template(options.chat_template))

    def load(self, folder: str | Path) -> "TextModel":
        """Returns the text model of a checkpoint folder."""
        from openinfer_text import TextModel

        return TextModel.from_folder(
            folder,
            chat_template=self.chat_template,
            tool_parser=self.tool_call_parser,
            reasoning_parser=self.reasoning_parser,
            is_accelerated=self.tokenizer_backend == "auto",
            verdict_folder=_verdict_folder(),
        )


TEXT_FLAGS = flags_of(TextOptions, "text")


def read_template(path: str | None) -> str | None:
    """Returns the Jinja source in a file, or None without a path.

    Raises:
        UsageError: the file is unreadable.
    """
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"chat template {path}: {error}") from error


def _verdict_folder() -> Path | None:
    """Returns the folder that caches the results of tokenizer tests; None without a home folder."""
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():  # the XDG specification says to ignore relative paths
        try:
            root = Path.home() / ".cache"
        except RuntimeError:
            return None
    return root / "openinfer" / "tokenizers"
