"""The wire format of Anthropic's Messages."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openinfer_contract import GenerateRequest, TokenLogprobs
from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._generation import Usage
from openinfer_frontend.protocols._block_format import Block, BlockFormat
from openinfer_frontend.protocols._dialect import ANTHROPIC, named_event
from openinfer_frontend.protocols._field_names import FieldNames
from openinfer_frontend.protocols._json import to_json
from openinfer_frontend.protocols._wire_format import FormatOptions

_STOP_REASONS: Mapping[str, str] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}
_DELTAS: Mapping[str, tuple[bytes, bytes]] = {
    "text": (b"text_delta", b"text"),
    "reasoning": (b"thinking_delta", b"thinking"),
    "call": (b"input_json_delta", b"partial_json"),
}


class MessagesFormat(BlockFormat):
    """A `message` with thinking, text and tool_use blocks."""

    def __init__(
        self,
        options: FormatOptions,
        requests: Sequence[GenerateRequest],
        num_samples: int,
        *,
        names: FieldNames,
    ) -> None:
        """Makes a format for one choice; `names` are the field names in its errors."""
        super().__init__(options, requests, num_samples)
        self._names = names
        self._delta_head = b""

    def opening(self, index: int, usage: Usage, prompt_logprobs: TokenLogprobs | None) -> bytes:
        """Returns `message_start`."""
        message = self._message([], None, usage)
        return named_event("message_start", {"type": "message_start", "message": message})

    def ending(self, usage: Usage) -> bytes:
        """Returns `message_delta` and `message_stop`."""
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self.stop_string}
        data = {"type": "message_delta", "delta": delta, "usage": self._usage(usage)}
        return named_event("message_delta", data) + named_event(
            "message_stop", {"type": "message_stop"}
        )

    def failure(self, error: ApiError) -> bytes:
        """Returns the event `error`."""
        return ANTHROPIC.error_event(error.renamed(self._names), self.options.request_id)

    def body(self, usage: Usage, prompt_logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """Returns the whole message."""
        content = [_content_block(block) for block in self.blocks]
        return self._message(content, self._stop_reason(), usage)

    def _message(
        self, content: list[dict[str, Any]], stop_reason: str | None, usage: Usage
    ) -> dict[str, Any]:
        return {
            "id": self.options.response_id,
            "type": "message",
            "role": "assistant",
            "model": self.options.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": self.stop_string,
            "usage": self._usage(usage),
        }

    def _stop_reason(self) -> str:
        if self.stop_string is not None:
            return "stop_sequence"
        calls = [block for block in self.blocks if block.kind == "call"]
        if self.finish_reason == "stop" and calls and all(call.is_whole for call in calls):
            # A forced call ends a chat completion with `stop`, but Anthropic's clients run a call
            # only after `tool_use`.
            return "tool_use"
        return _STOP_REASONS[self.finish_reason]

    def _usage(self, usage: Usage) -> dict[str, Any]:
        return {
            "input_tokens": usage.num_prompt_tokens - usage.num_cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.num_cached_tokens,
            "output_tokens": usage.num_output_tokens,
            "output_tokens_details": {"thinking_tokens": self.num_reasoning_tokens},
        }

    def _start_events(self, block: Block) -> bytes:
        kind, key = _DELTAS[block.kind]
        self._delta_head = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":' % (block.index, kind, key)
        )
        data = {
            "type": "content_block_start",
            "index": block.index,
            "content_block": _content_block(block),
        }
        return named_event("content_block_start", data)

    def _delta_events(self, block: Block, text: str) -> bytes:
        return self._delta_head + to_json(text) + b"}}\n\n"

    def _stop_events(self, block: Block) -> bytes:
        signature = b""
        if block.kind == "reasoning":
            # There is no signature, but clients need the field to send a block back.
            delta = {"type": "signature_delta", "signature": ""}
            data = {"type": "content_block_delta", "index": block.index, "delta": delta}
            signature = named_event("content_block_delta", data)
        data = {"type": "content_block_stop", "index": block.index}
        return signature + named_event("content_block_stop", data)


def _content_block(block: Block) -> dict[str, Any]:
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    return {
        "type": "tool_use",
        "id": block.call_id,
        "name": block.name,
        "input": _arguments(block.text),
    }


def _arguments(text: str) -> dict[str, Any]:
    """Parses the arguments of a call; empty for a call that was cut off."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError):
        return {}
