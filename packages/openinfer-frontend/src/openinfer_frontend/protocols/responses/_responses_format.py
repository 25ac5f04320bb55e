"""The wire format of OpenAI's Responses."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from openinfer_contract import GenerateRequest, TokenLogprobs
from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._generation import Delta, Usage
from openinfer_frontend.protocols._block_format import Block, BlockFormat
from openinfer_frontend.protocols._json import to_json
from openinfer_frontend.protocols._wire_format import FormatOptions
from openinfer_frontend.protocols.openai._logprobs import chat_logprobs
from openinfer_frontend.protocols.responses._responses_request import ResponsesRequest

_EVENTS: Mapping[str, str] = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "call": "response.function_call_arguments",
}
_ID_PREFIXES: Mapping[str, str] = {"text": "msg_", "reasoning": "rs_", "call": "fc_"}


class ResponsesFormat(BlockFormat):
    """A `response` with reasoning, message and function_call items."""

    def __init__(
        self,
        options: FormatOptions,
        requests: Sequence[GenerateRequest],
        num_samples: int,
        *,
        request: ResponsesRequest,
    ) -> None:
        """Makes a format for one choice; the response repeats fields of `request`."""
        super().__init__(options, requests, num_samples)
        self._request = request
        self._created = int(time.time())
        self._num_events = 0
        self._delta_head = b""
        self._is_streamed = True
        """Whether events are made."""
        self._logprobs: dict[int, list[Any]] = {}
        """Logprobs of the text blocks of a response that is not streamed, by block index."""
        self._sent_logprobs: dict[int, list[bytes]] = {}
        """Encoded logprobs of the text blocks of a stream, by block index. Later events repeat
        them."""
        self._delta_logprobs: list[Any] = []
        """Logprobs of the tokens since the last text."""

    def opening(self, index: int, usage: Usage, prompt_logprobs: TokenLogprobs | None) -> bytes:
        """Returns `response.created` and `response.in_progress`."""
        response = self._response("in_progress", None)
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def ending(self, usage: Usage) -> bytes:
        """Returns `response.completed` or `response.incomplete`."""
        status = self._status()
        return self._event(f"response.{status}", response=self._response(status, usage))

    def failure(self, error: ApiError) -> bytes:
        """Returns `response.failed`."""
        error = error.renamed(self._request.field_names())
        response = self._response("failed", None)
        # OpenAI's list of codes has no better one, for example for a deadline.
        response["error"] = {"code": "server_error", "message": error.message}
        for item in response["output"]:
            if item["status"] == "in_progress":
                item["status"] = "incomplete"
        return self._event("response.failed", response=response)

    def body(self, usage: Usage, prompt_logprobs: Sequence[TokenLogprobs | None]) -> dict[str, Any]:
        """Returns the whole response."""
        return self._response(self._status(), usage)

    def add(self, delta: Delta) -> None:
        """Adds a delta to a response that is not streamed."""
        self._is_streamed = False
        super().add(delta)

    def _add_delta(self, delta: Delta) -> bytes:
        is_text = self._open.kind == "text" if self._open is not None else not self.blocks
        if not (is_text or self._blank):
            # The tokens so far are not part of a text, except at the start and in white space,
            # where a text may still follow.
            self._delta_logprobs.clear()
        if delta.logprobs is not None:
            names = self.options.names
            self._delta_logprobs += chat_logprobs(names, delta.token_ids, delta.logprobs)
        return super()._add_delta(delta)

    def _status(self) -> str:
        return "incomplete" if self.finish_reason == "length" else "completed"

    def _response(self, status: str, usage: Usage | None) -> dict[str, Any]:
        request = self._request
        text = request.text.format if request.text is not None else None
        effort = request.reasoning.effort if request.reasoning is not None else None
        why = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.options.response_id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": why,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "metadata": request.metadata or {},
            "model": self.options.model,
            "output": [self._item(block) for block in self.blocks],
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": None,
            "prompt_cache_key": request.prompt_cache_key,
            "reasoning": {"effort": effort, "summary": None},
            "store": False,
            "temperature": request.temperature,
            "text": {"format": text or {"type": "text"}},
            "tool_choice": request.tool_choice or "auto",
            "tools": request.tools or [],
            "top_logprobs": request.top_logprobs or 0,
            "top_p": request.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else self._usage(usage),
            "user": request.user,
        }

    def _usage(self, usage: Usage) -> dict[str, Any]:
        cached = {"cached_tokens": usage.num_cached_tokens, "cache_write_tokens": 0}
        return {
            "input_tokens": usage.num_prompt_tokens,
            "input_tokens_details": cached,
            "output_tokens": usage.num_output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.num_reasoning_tokens},
            "total_tokens": usage.num_prompt_tokens + usage.num_output_tokens,
        }

    def _start_events(self, block: Block) -> bytes:
        where = {"output_index": block.index, "item_id": self._item_id(block)}
        added = self._event(
            "response.output_item.added", output_index=block.index, item=self._item(block)
        )
        if block.kind != "call":
            where["content_index"] = 0
            added += self._event("response.content_part.added", **where, part=self._part(block))
        name = f"{_EVENTS[block.kind]}.delta"
        fixed = to_json({"type": name} | where)[1:-1]
        self._delta_head = b"event: %b\ndata: {%b," % (name.encode(), fixed)
        return added

    def _delta_events(self, block: Block, text: str) -> bytes:
        logprobs = b""
        if block.kind == "text":
            found, self._delta_logprobs = self._delta_logprobs, []
            if self._is_streamed:
                spelled = to_json(found) if found else b"[]"
                logprobs = b',"logprobs":%b' % spelled
                if found:
                    self._sent_logprobs.setdefault(block.index, []).append(spelled[1:-1])
            else:
                self._logprobs.setdefault(block.index, []).extend(found)
        if not self._is_streamed:
            return b""
        return b'%b"sequence_number":%d,"delta":%b%b}\n\n' % (
            self._delta_head,
            self._number(),
            to_json(text),
            logprobs,
        )

    def _stop_events(self, block: Block) -> bytes:
        where: dict[str, Any] = {"output_index": block.index, "item_id": self._item_id(block)}
        name = f"{_EVENTS[block.kind]}.done"
        if block.kind == "call":
            done = self._event(name, **where, name=block.name, arguments=block.text)
        else:
            where["content_index"] = 0
            part = self._part(block)
            extra = {"logprobs": part["logprobs"]} if block.kind == "text" else {}
            done = self._event(name, **where, text=block.text, **extra)
            done += self._event("response.content_part.done", **where, part=part)
        done += self._event(
            "response.output_item.done", output_index=block.index, item=self._item(block)
        )
        return done

    def _event(self, name: str, /, **fields: Any) -> bytes:
        if not self._is_streamed:
            return b""
        data = {"type": name, "sequence_number": self._number()} | fields
        return b"event: %b\ndata: %b\n\n" % (name.encode(), to_json(data))

    def _number(self) -> int:
        number = self._num_events
        self._num_events += 1
        return number

    def _item_id(self, block: Block) -> str:
        bare = self.options.response_id.removeprefix("resp_")
        return f"{_ID_PREFIXES[block.kind]}{bare}_{block.index}"

    def _item(self, block: Block) -> dict[str, Any]:
        item: dict[str, Any] = {"id": self._item_id(block)}
        item["status"] = self._item_status(block)
        if block.kind == "call":
            call = {"call_id": block.call_id, "name": block.name, "arguments": block.text}
            return item | {"type": "function_call"} | call
        content = [self._part(block)] if block.parts else []
        if block.kind == "reasoning":
            return item | {"type": "reasoning", "summary": [], "content": content}
        return item | {"type": "message", "role": "assistant", "content": content}

    def _item_status(self, block: Block) -> str:
        if block is self._open:
            return "in_progress"
        return "completed" if block.is_whole else "incomplete"

    def _part(self, block: Block) -> dict[str, Any]:
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": block.text}
        sent = self._sent_logprobs.get(block.index)
        logprobs = self._logprobs.get(block.index, [])
        return {
            "type": "output_text",
            "text": block.text,
            "annotations": [],
            "logprobs": logprobs if sent is None else msgspec.Raw(b"[%b]" % b",".join(sent)),
        }
