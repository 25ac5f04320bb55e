"""Opens the model that the command line of `chat` or `complete` names."""

import argparse
import os
from collections.abc import Sequence
from typing import Any

from openinfer.errors import UsageError
from openinfer.options._flags import FLAGS
from openinfer.options._http_options import API_KEY
from openinfer.options._line_options import unknown_remote_flag
from openinfer.terminal._terminal_model import Model


def open_model(
    namespace: argparse.Namespace, extra: Sequence[str], positional: str | None
) -> Model:
    """Opens the model that a command line names.

    Raises:
        OpenInferError: the model cannot be opened.
    """
    name = getattr(namespace, "model", None) or positional
    key: str | None = getattr(namespace, "api_key", None)
    if namespace.url:
        if extra:
            raise unknown_remote_flag(extra[0])
        for flag in FLAGS:
            if flag.dest != "model" and flag.dest in vars(namespace):
                raise UsageError(f"{flag.names[0]} has no effect with --url; leave it out")
        from openinfer.terminal._remote import RemoteModel

        key = os.environ.get(API_KEY) if key is None else key
        return RemoteModel(namespace.url, name, key)
    if key is not None:
        raise UsageError("--api-key has no effect without --url; leave it out")
    from openinfer.terminal._local import LocalModel

    return LocalModel(name, namespace, extra)


def sampling_options(namespace: argparse.Namespace) -> dict[str, Any]:
    """Returns the sampling fields that the command line sets."""
    fields = ("max_tokens", "temperature", "top_p")
    return {name: value for name in fields if (value := getattr(namespace, name)) is not None}
