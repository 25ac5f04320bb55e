"""`Model`: what the terminal's commands need of a model, loaded here or behind a URL."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

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
