"""All flags of OpenInfer, in vLLM's spelling with SGLang's beside it.

The flags are made from the options structs. Any other flag belongs to a model line or an engine
(`_line_options`).
"""

import argparse
from collections.abc import Collection, Iterable
from typing import Literal

from openinfer.options._http_options import HTTP_FLAGS
from openinfer.options._model_options import MODEL_FLAGS
from openinfer.options._server_options import SERVER_FLAGS
from openinfer.options._text_options import TEXT_FLAGS
from openinfer_engine import ENGINE_FLAGS, Flag
from openinfer_engine import add_flags as add_rows

Scope = Literal["model", "engine", "text", "http", "server"]

FLAGS: tuple[Flag, ...] = (
    *MODEL_FLAGS,
    *ENGINE_FLAGS,
    *TEXT_FLAGS,
    *HTTP_FLAGS,
    *SERVER_FLAGS,
)

TERMINAL_FLAGS = (
    "--url", "--max-tokens", "--temperature", "--top-p", "--system", "--tools", "--run-tools",
)  # fmt: skip
"""Flags that only `chat` and `complete` have."""


def add_flags(
    parser: argparse.ArgumentParser, scopes: Iterable[Scope], *, only: Collection[str] = ()
) -> None:
    """Adds the flags of these scopes. A flag that the user does not set is not in the namespace.

    Args:
        parser: the parser to which the flags are added.
        scopes: scopes of the flags to add.
        only: destinations of the flags to add; empty for all.
    """
    wanted = set(scopes)
    rows = (flag for flag in FLAGS if flag.scope in wanted and (not only or flag.dest in only))
    add_rows(parser, rows)
