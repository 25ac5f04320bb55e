"""Rendering and encoding of prompts, in threads if they are long."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from openinfer_contract import pack_ids
from openinfer_frontend.errors import ApiError
from openinfer_frontend.http._polling import Polling
from openinfer_frontend.protocols.openai._chat_request import ChatRequest
from openinfer_frontend.protocols.openai._token_requests import TokenizeRequest
from openinfer_text import (
    GenerationDefaults,
    InvalidChatInput,
    NoChatTemplate,
    TemplateError,
    TextModel,
)

T = TypeVar("T")

_MAX_CUSTOM_TEMPLATES = 16
"""Maximum number of requests with their own chat templates, rendering or waiting."""
_SYSTEM_ROLES = ("system", "developer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """A prompt in the engine's terms."""

    token_ids: bytes
    """u32 column."""
    boundaries: bytes = b""
    """u32 column of the positions where messages end."""
    text: str = ""
    """The text that the chat template produced."""
    turn: str = ""
    """The beginning of the assistant's turn that the prompt already contains."""
    param: str = ""
    """The prompt's name in errors, if the request has several prompts."""
    call_ids: tuple[str, ...] = ()
    """Ids of the tool calls in a chat's messages."""


class TextWork:
    """A `TextModel` with a small thread pool, so that long prompts delay no stream."""

    def __init__(
        self,
        model: TextModel,
        *,
        num_threads: int,
        max_inline_bytes: int,
        allow_request_templates: bool = False,
        polling: Polling,
    ) -> None:
        """Prepares the thread pool; threads start with the first long prompt.

        Args:
            model: shared, not owned.
            num_threads: maximum number of threads.
            max_inline_bytes: inputs up to this size are processed on the event loop.
            allow_request_templates: whether requests may bring chat templates.
            polling: of the event loop; it pauses while a thread works.
        """
        self.model = model
        self._max_inline_bytes = max_inline_bytes
        self._allow_request_templates = allow_request_templates
        self._polling = polling
        self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="openinfer-text")
        # Templates of requests have their own thread: they may take up to their time limit, and
        # other prompts must not wait for them.
        self._custom_pool = ThreadPoolExecutor(1, thread_name_prefix="openinfer-template")
        self._num_custom = 0

    def defaults(self, mode: str) -> GenerationDefaults:
        """Returns the values of the sampling fields that a request leaves out."""
        return self.model.generation if mode == "auto" else GenerationDefaults()

    async def encode_prompts(
        self,
        prompts: Sequence[str] | Sequence[list[int]],
        *,
        add_special_tokens: bool,
        vocab_size: int,
        size: int,
    ) -> list[Prompt]:
        """Returns the prompts of a completion; given ids are taken as they are.

        Args:
            prompts: texts, or lists of ids.
            add_special_tokens: as in `Tokenizer.encode`.
            vocab_size: exclusive upper bound of the ids.
            size: of the request in bytes.

        Raises:
            ApiError: a text is not valid Unicode, or an id is not the model's.
        """

        def encode(prompt: str | list[int], param: str) -> Prompt:
            with _errors_naming(param or "prompt"):
                if isinstance(prompt, str):
                    ids = self.model.encode(prompt, add_special_tokens=add_special_tokens)
                elif max(prompt, default=0) >= vocab_size:
                    raise ValueError(f"token ids must be below {vocab_size}")
                else:
                    ids = pack_ids(prompt)
                return Prompt(token_ids=ids, param=param)

        is_one = len(prompts) == 1
        params = ["" if is_one else f"prompt[{index}]" for index in range(len(prompts))]

        # Packing ids holds the GIL, so a thread would not free the event loop.
        has_text = any(isinstance(prompt, str) for prompt in prompts)
        work_size = size if has_text else 0
        return await self._run(lambda: [*map(encode, prompts, params)], work_size, "prompt")

    async def encode_chat(self, request: ChatRequest | TokenizeRequest, *, size: int) -> Prompt:
        """Renders messages with the chat template, and encodes the result.

        Args:
            request: has messages.
            size: of the request in bytes.

        Raises:
            ApiError: 400, if template, tools and messages do not fit each other; 503, if too many
                requests with their own templates are waiting.
        """
        template, tools = self.model.chat_template, request.offered_tools
        foreign = request.chat_template
        if foreign is not None and not self._allow_request_templates:
            message = (
                "chat_template: this server accepts no templates in requests; "
                "its operator can allow them with --trust-request-chat-template"
            )
            raise ApiError(400, message, param="chat_template")
        if tools and foreign is None and template is not None and not template.takes_tools:
            message = "tools: this model's chat template does not support tools"
            raise ApiError(400, message, param="tools")

        def encode() -> Prompt:
            chat = self.model.encode_chat(
                request.messages or (),
                tools=tools,
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                chat_template_kwargs=request.template_kwargs,
                add_special_tokens=bool(request.add_special_tokens),
                chat_template=foreign,
            )
            return Prompt(
                token_ids=chat.token_ids,
                boundaries=pack_ids(chat.boundaries),
                text=chat.text,
                turn=chat.turn,
                call_ids=chat.call_ids,
            )

        if foreign is not None:
            return await self._run_custom_template(encode)
        return await self._run(encode, size, "messages")

    def fold_late_system_messages(self, chat: ChatRequest) -> ChatRequest:
        """Moves system messages in the middle of a chat into the user's turn beside them.

        Many chat templates refuse late system messages. Chats for templates that accept them stay
        unchanged.
        """
        template = self.model.chat_template
        if template is None or template.takes_late_system:
            return chat
        return chat.model_copy(update={"messages": _without_late_system(chat.messages)})

    async def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of ids, with special tokens shown."""
        return await self._run(
            lambda: self.model.decode(token_ids, skip_special_tokens=False),
            4 * len(token_ids),
            "tokens",
        )

    async def run_long(self, work: Callable[[], T]) -> T:
        """Runs a function in one of the threads."""
        with self._polling.paused():
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Stops the threads once their work is done."""
        for pool in (self._pool, self._custom_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    async def _run(self, work: Callable[[], T], size: int, param: str) -> T:
        with _errors_naming(param):
            return work() if size <= self._max_inline_bytes else await self.run_long(work)

    async def _run_custom_template(self, work: Callable[[], T]) -> T:
        if self._num_custom >= _MAX_CUSTOM_TEMPLATES:
            message = "too many requests with their own chat templates at once; try again later"
            raise ApiError.unavailable(message, refusal="template_queue")
        self._num_custom += 1
        try:
            with _errors_naming("chat_template"), self._polling.paused():
                return await asyncio.get_running_loop().run_in_executor(self._custom_pool, work)
        finally:
            self._num_custom -= 1


@contextmanager
def _errors_naming(param: str) -> Iterator[None]:
    """Turns errors of the text package into 400s that name a field."""
    try:
        yield
    except InvalidChatInput as error:
        raise ApiError(400, str(error), param=error.field) from error
    except (NoChatTemplate, TemplateError, ValueError) as error:
        raise ApiError.invalid(param, str(error)) from error


def _without_late_system(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the messages without late system messages, in linear time.

    User messages with a system message between them become one message: some templates want the
    roles to alternate.
    """
    is_system = [message["role"] in _SYSTEM_ROLES for message in messages]
    start = is_system.index(False) if False in is_system else len(messages)
    turns: list[list[dict[str, Any]]] = []
    for index in range(start, len(messages)):
        is_joined = index > start and (is_system[index] or is_system[index - 1])
        if is_joined and all(
            _belongs_to_user(message) for message in messages[index - 1 : index + 1]
        ):
            turns[-1].append(messages[index])
        else:
            turns.append([messages[index]])
    return [*messages[:start], *map(_merged_user_turn, turns)]


def _belongs_to_user(message: Mapping[str, Any]) -> bool:
    return message["role"] in ("user", *_SYSTEM_ROLES)


def _merged_user_turn(messages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merges the messages of one user turn."""
    first = next((message for message in messages if message["role"] == "user"), messages[0])
    if len(messages) > 1:
        parts = [part for message in messages for part in _content_parts(message)]
        return first | {"role": "user", "content": parts}
    return first | {"role": "user"} if first["role"] in _SYSTEM_ROLES else first


def _content_parts(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
