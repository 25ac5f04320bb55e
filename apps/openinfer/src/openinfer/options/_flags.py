"""The flags of `serve`, `LLM` and friends as one table, in vLLM's spelling with SGLang's beside it.

What is not in the table is the business of `_line_options`.
"""

import argparse
from collections.abc import Collection, Iterable
from typing import Literal

from openinfer.options._server_flags import SERVER_FLAGS
from openinfer_engine import ENGINE_FLAGS, Flag
from openinfer_engine import add_flags as add_rows

Scope = Literal["engine", "frontend", "server"]

FLAGS: tuple[Flag, ...] = (
    # the model
    Flag("model", ("--model", "--model-path"), "str", "server", "folder, installed name or hub id"),
    Flag("revision", ("--revision",), "str", "server", "branch, tag or commit on the hub"),
    Flag("download_dir", ("--download-dir",), "str", "server", "hub cache to use"),
    Flag("model_line", ("--model-line",), "str", "server", "which installed line serves the model"),
    Flag("engine", ("--engine",), "str", "server", "serve by this installed engine, such as sim"),
    *ENGINE_FLAGS,
    *SERVER_FLAGS,
)

TERMINAL_FLAGS = (
    "--url", "--max-tokens", "--temperature", "--top-p", "--system", "--tools", "--run-tools",
)  # fmt: skip
"""Of `chat` and `complete` alone."""


def add_flags(
    parser: argparse.ArgumentParser, scopes: Iterable[Scope], *, only: Collection[str] = ()
) -> None:
    """Adds the table's flags of these scopes; only those the user sets reach the namespace.

    Args:
        parser: gets them.
        scopes: whose flags.
        only: of these the ones with such a destination; all if empty.
    """
    wanted = set(scopes)
    rows = (flag for flag in FLAGS if flag.scope in wanted and (not only or flag.dest in only))
    add_rows(parser, rows)
