"""The wire formats of completions and chat completions.

The path of an event joins bytes: the constant parts of a chunk are made once per choice.
"""

import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from openinfer_contract import GenerateRequest, MergeBuffer, TokenLogprobs, unpack_ids
from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._choice import Timing
from openinfer_frontend.generation._generation import Delta, Usage
from openinfer_frontend.protocols._dialect import OPENAI
from openinfer_frontend.protocols._json import to_json, to_json_in_slices
from openinfer_frontend.protocols._wire_format import FormatOptions, WireFormat
from openinfer_frontend.protocols.openai._logprobs import (
    Columns,
    chat_logprobs,
    completion_logprobs,
    echoed_logprobs,
    prompt_entries,
)

_END = b"}]}\n\n"
_PLAIN_END = b',"logprobs":null,"finish_reason":null'


@cache
def _shared(part: bytes) -> bytes:
    """Returns one shared object for equal parts, which stays in the processor's caches."""
    return part


@dataclass(slots=True)
class ChoiceResult:
    """One choice of a response that is not streamed."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    scores: MergeBuffer[TokenLogprobs] = field(default_factory=MergeBuffer)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    timing: Timing | None = None
    prompt_logprobs: TokenLogprobs | None = None
    """From the prompt's second token on."""

    def add(self, delta: Delta) -> None:
        """Adds a delta."""
        self.texts.append(delta.text)
        self.token_ids += delta.token_ids
        self.starts += delta.starts
        if delta.logprobs is not None:
            self.scores.add(delta.logprobs, len(delta.token_ids))
        self.finish_reason, self.stop_reason = delta.finish_reason, delta.stop_reason
        self.timing = delta.timing

    @property
    def logprobs(self) -> TokenLogprobs | None:
        """Logprobs of `token_ids`, if they were asked for."""
        return self.scores.merge_all()


class ChoicesFormat(WireFormat):
    """OpenAI's list of choices.

    A chunk is `head index open text close rest`; within a choice only text and rest change.
    """

    object_name: str
    chunk_name: str
    _open: bytes
    _close: bytes

    def __init__(
        self, options: FormatOptions, requests: Sequence[GenerateRequest], num_samples: int
    ) -> None:
        """Makes a format for these choices; each prompt has `num_samples` of them."""
        super().__init__(options, requests, num_samples)
        self._results = [ChoiceResult() for _ in requests]
        self._created = int(time.time())
        self._head = b"data: " + to_json(self._identity(self.chunk_name))[:-1] + b',"choices":['
        self._prefixes = tuple(
            b'%b{"index":%d,%b' % (self._head, index, self._open) for index in range(len(requests))
        )
        self._plain_end = self._close + _PLAIN_END + self._stop_reason(None)
        self._plain_rest = None if options.return_token_ids else _shared(self._plain_end + _END)
        """The constant end of chunks that have only text; None if every chunk has further fields.
        """

    def chunk(self, delta: Delta, usage: Usage | None = None) -> bytes:
        """Returns the event of one delta; usage is given if every chunk has it."""
        is_plain = delta.logprobs is None and delta.finish_reason is None and usage is None
        if is_plain and self._plain_rest is not None:
            return self._prefixes[delta.index] + self._payload(delta) + self._plain_rest
        parts = [self._prefixes[delta.index], self._payload(delta)]
        if delta.logprobs is None and delta.finish_reason is None:
            parts.append(self._plain_end)
        else:
            logprobs = self._logprobs(delta.index, delta)
            finish = b',"logprobs":%b,"finish_reason":%b'
            parts += (
                self._close,
                finish % (to_json(logprobs), to_json(delta.finish_reason)),
                self._stop_reason(delta),
            )
        if self.options.return_token_ids:
            parts.append(b',"token_ids":' + to_json(list(delta.token_ids)))
        if self.options.return_timings and delta.timing is not None:
            parts.append(b',"timings":' + to_json(delta.timing.as_json()))
        parts.append(b"}]" if usage is None else b'}],"usage":' + to_json(self._usage(usage)))
        parts.append(b"}\n\n")
        return b"".join(parts)

    def ending(self, usage: Usage) -> bytes:
        """Returns the event with the usage, if it was asked for."""
        if not self.options.include_usage:
            return b""
        return self._head + b'],"usage":' + to_json(self._usage(usage)) + b"}\n\n"

    def failure(self, error: ApiError) -> bytes:
        """Returns the error object as data."""
        return OPENAI.error_event(error, self.options.request_id)

    def add(self, delta: Delta) -> None:
        """Adds a delta to a choice."""
        self._results[delta.index].add(delta)

    def body(self, usage: Usage, prompt_logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """Returns the whole response."""
        for result, scores in zip(self._results, prompt_logprobs, strict=True):
            result.prompt_logprobs = scores
        body: dict[str, Any] = self._identity(self.object_name)
        body["choices"] = [self._choice(i, result) for i, result in enumerate(self._results)]
        body["usage"] = self._usage(usage)
        body["system_fingerprint"] = None
        return body

    def _usage(self, usage: Usage) -> dict[str, object]:
        return usage.as_json()

    def _opening_end(self, usage: Usage) -> bytes:
        """Returns the end of an opening, with the usage if every event has it."""
        if not self.options.continuous_usage:
            return b"}\n\n"
        bare = replace(usage, num_output_tokens=0)
        return b',"usage":%b}\n\n' % to_json(self._usage(bare))

    def prompt_token_ids(self, index: int) -> list[int]:
        """Returns the prompt's ids of choice `index`."""
        return unpack_ids(self._requests[index].prompt_token_ids)

    def _payload(self, delta: Delta) -> bytes:
        """Returns the bytes between open and close."""
        return to_json(delta.text)

    def prompt_entries(self, index: int, result: ChoiceResult) -> dict[str, Any]:
        """Returns the field `prompt_logprobs`, if it was asked for."""
        num_top = self.options.num_top_prompt
        if num_top is None:
            return {}
        ids, scored = self.prompt_token_ids(index), result.prompt_logprobs
        return {"prompt_logprobs": prompt_entries(self.options.names, ids, scored, num_top)}

    @abstractmethod
    def _logprobs(self, index: int, scored: Delta | ChoiceResult) -> object: ...

    @abstractmethod
    def _stop_reason(self, delta: Delta | None) -> bytes: ...

    @abstractmethod
    def _content(self, index: int, text: str) -> dict[str, Any]: ...

    def _choice(self, index: int, result: ChoiceResult) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index} | self._content(index, "".join(result.texts))
        choice["logprobs"] = self._logprobs(index, result)
        choice["finish_reason"] = result.finish_reason
        choice["stop_reason"] = result.stop_reason
        if self.options.return_token_ids:
            choice["token_ids"] = result.token_ids
        if self.options.return_timings and result.timing is not None:
            choice["timings"] = result.timing.as_json()
        return choice

    def _identity(self, object_name: str) -> dict[str, Any]:
        return {
            "id": self.options.response_id,
            "object": object_name,
            "created": self._created,
            "model": self.options.model,
        }


class CompletionFormat(ChoicesFormat):
    """A `text_completion`."""

    object_name = chunk_name = "text_completion"
    _open = b'"text":'
    _close = b""

    def _echo(self, index: int) -> str:
        echoes = self.options.echoes
        return echoes[index // self._num_samples] if echoes else ""

    def opening(self, index: int, usage: Usage, prompt_logprobs: TokenLogprobs | None) -> bytes:
        """Returns the echoed prompt, its logprobs and its ids, as far as they were asked for."""
        echo, wants_ids = self._echo(index), self.options.return_token_ids
        if not (echo or wants_ids):
            return b""
        ids = b',"prompt_token_ids":' + to_json(self.prompt_token_ids(index)) if wants_ids else b""
        text = to_json(echo)
        end, scores = self._plain_end, self._echoed_logprobs(index, prompt_logprobs)
        if scores is not None:
            end = b',"logprobs":%b,"finish_reason":null' % to_json_in_slices(scores)
            end += self._stop_reason(None)
        return self._prefixes[index] + text + end + ids + b"}]" + self._opening_end(usage)

    def _echoed_logprobs(self, index: int, prompt_logprobs: TokenLogprobs | None) -> Columns | None:
        num_top = self.options.num_top_echoed
        if num_top is None:
            return None
        ids, echo = self.prompt_token_ids(index), self._echo(index)
        return echoed_logprobs(self.options.names, ids, echo, prompt_logprobs, num_top)

    def _logprobs(self, index: int, scored: Delta | ChoiceResult) -> object:
        if scored.logprobs is None:
            return None
        names, first = self.options.names, len(self._echo(index))
        offsets = [first + start for start in scored.starts]
        return completion_logprobs(names, scored.token_ids, offsets, scored.logprobs)

    def _stop_reason(self, delta: Delta | None) -> bytes:
        return b',"stop_reason":' + to_json(delta.stop_reason if delta else None)

    def _content(self, index: int, text: str) -> dict[str, Any]:
        content: dict[str, Any] = {"text": self._echo(index) + text}
        if self.options.return_token_ids:
            content["prompt_token_ids"] = self.prompt_token_ids(index)
        return content

    def _choice(self, index: int, result: ChoiceResult) -> dict[str, Any]:
        echoed = self._echoed_logprobs(index, result.prompt_logprobs)
        choice = super()._choice(index, result) | self.prompt_entries(index, result)
        if echoed is not None:
            output = choice["logprobs"] or {}
            choice["logprobs"] = {name: [*echoed[name], *output.get(name, ())] for name in echoed}
        return choice


class ChatFormat(ChoicesFormat):
    """A `chat.completion`, or its `chat.completion.chunk`s."""

    object_name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    _open = b'"delta":{"content":'
    _close = b"}"

    def opening(self, index: int, usage: Usage, prompt_logprobs: TokenLogprobs | None) -> bytes:
        """Returns the chunk with the role; the first one may have the prompt's ids."""
        ids = b""
        if self.options.return_token_ids and index == 0:
            ids = b',"prompt_token_ids":' + to_json(self.prompt_token_ids(0))
        delta = b'{"index":%d,"delta":{"role":"assistant","content":""}' % index
        return self._head + delta + _PLAIN_END + b"}]" + ids + self._opening_end(usage)

    def body(self, usage: Usage, prompt_logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """Returns the whole response."""
        body = super().body(usage, prompt_logprobs)
        if self.options.return_token_ids:
            body["prompt_token_ids"] = self.prompt_token_ids(0)
        return body | self.prompt_entries(0, self._results[0])

    def _usage(self, usage: Usage) -> dict[str, object]:
        details = {"reasoning_tokens": self.num_reasoning_tokens}
        return usage.as_json() | {"completion_tokens_details": details}

    @property
    def num_reasoning_tokens(self) -> int:
        """Number of output tokens that are reasoning."""
        return 0

    def _logprobs(self, index: int, scored: Delta | ChoiceResult) -> object:
        if scored.logprobs is None:
            return None
        return {"content": chat_logprobs(self.options.names, scored.token_ids, scored.logprobs)}

    def _stop_reason(self, delta: Delta | None) -> bytes:
        if delta is None or delta.finish_reason is None:
            return b""
        return b',"stop_reason":' + to_json(delta.stop_reason)

    def _content(self, index: int, text: str) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text}}
