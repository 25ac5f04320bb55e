"""What the terminal's commands need of a model, loaded here or behind a URL."""

import argparse
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from openinfer._flags import FLAGS
from openinfer._http_options import API_KEY
from openinfer._line_options import unknown_remote_flag
from openinfer.errors import UsageError
from openinfer_text import Piece

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """The last thing a chat's stream yields."""

    reason: str
    """`tool_calls`: the calls are whole and wait for their results."""


class Model(Protocol):
    """A model to talk to."""

    name: str

    def stream_chat(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Generator[Piece | Ended, None, None]:
        """The answer to a conversation as it comes; closing the iterator ends it."""

    def stream_completion(
        self, prompt: str, options: Mapping[str, Any]
    ) -> Generator[str, None, None]:
        """The continuation of a text, piece by piece; closing the iterator ends it."""

    def num_tokens_left(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> int | None:
        """Tokens of the context behind a conversation, negative if it has more than the context.

        None where that is not known.
        """

    def close(self) -> None:
        """Frees what the model holds."""


def open_model(
    namespace: argparse.Namespace, extra: Sequence[str], positional: str | None
) -> Model:
    """The model that a command line asks for.

    Raises:
        OpenInferError: a sentence that says what to do.
    """
    name = getattr(namespace, "model", None) or positional
    key: str | None = getattr(namespace, "api_key", None)
    if namespace.url:
        if extra:
            raise unknown_remote_flag(extra[0])
        for flag in FLAGS:
            if flag.dest != "model" and flag.dest in vars(namespace):
                raise UsageError(f"{flag.names[0]} has no effect with --url; leave it out")
        from openinfer._remote import RemoteModel

        key = os.environ.get(API_KEY) if key is None else key
        return RemoteModel(namespace.url, name, key)
    if key is not None:
        raise UsageError("--api-key has no effect without --url; leave it out")
    from openinfer._local import LocalModel

    return LocalModel(name, namespace, extra)


def sampling_options(namespace: argparse.Namespace) -> dict[str, Any]:
    """The sampling fields that the command line sets."""
    fields = ("max_tokens", "temperature", "top_p")
    return {name: value for name in fields if (value := getattr(namespace, name)) is not None}
