"""`LocalModel`: an `LLM` with the interface of the terminal's commands."""

import argparse
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from typing import Any

from openinfer.errors import RequestRejected
from openinfer.llm._llm import LLM
from openinfer.llm._sampling_params import SamplingParams
from openinfer.terminal._terminal_model import Ended, Message
from openinfer_contract import unpack_ids
from openinfer_text import Piece


class LocalModel:
    """A model loaded into this process; satisfies `Model`."""

    def __init__(
        self, model: str | None, namespace: argparse.Namespace, extra: Sequence[str]
    ) -> None:
        self._llm = LLM._from_flags(model, vars(namespace), extra)
        self.name = self._llm.name

    def stream_chat(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Generator[Piece | Ended, None, None]:
        """Streams the response to a conversation; closing the iterator aborts it."""
        params = SamplingParams(**{"max_tokens": None, **options})
        reason = ""
        # Closed explicitly: after an interrupt, the request would otherwise run until the garbage
        # collector finds the generator.
        with closing(self._llm._stream_chat(messages, params, tools)) as deltas:
            for delta in deltas:
                yield from delta.pieces
                reason = delta.finish_reason or reason
        yield Ended(reason)

    def stream_completion(
        self, prompt: str, options: Mapping[str, Any]
    ) -> Generator[str, None, None]:
        """Streams the continuation of a text; closing the iterator aborts it."""
        return self._llm.stream(prompt, SamplingParams(**{"max_tokens": 128, **options}))

    def num_tokens_left(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> int | None:
        """Returns the free tokens of the context; None if the messages are invalid."""
        try:
            chat = self._llm._encode_chat(messages, tools=tools)
        except RequestRejected:
            return None
        return self._llm.engine.info.limits.max_model_len - len(unpack_ids(chat.token_ids))

    def close(self) -> None:
        """Frees the model."""
        self._llm.close()
