"""`Model`: the interface of `chat` and `complete` to a model, in this process or on a server."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from openinfer_text import Piece

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """The last item of a chat's stream."""

    reason: str
    """The finish reason. `tool_calls`: the calls are complete and wait for results."""


class Model(Protocol):
    """A model that continues texts and conversations."""

    name: str

    def stream_chat(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Generator[Piece | Ended, None, None]:
        """Streams the response to a conversation; closing the iterator aborts it."""

    def stream_completion(
        self, prompt: str, options: Mapping[str, Any]
    ) -> Generator[str, None, None]:
        """Streams the continuation of a text; closing the iterator aborts it."""

    def num_tokens_left(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> int | None:
        """Returns the free tokens of the context after a conversation; None if unknown.

        The number is negative if the conversation is longer than the context.
        """

    def close(self) -> None:
        """Frees the model's memory and connections."""
