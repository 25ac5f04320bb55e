"""`LLM`: an engine and a tokenizer in this process, for batches, notebooks and the terminal."""

import itertools
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openinfer.errors import GenerationFailed, RequestRejected, UsageError
from openinfer.launch._checkpoint_defaults import keep_honoured_defaults
from openinfer.launch._prepare import Prepared, prepare
from openinfer.llm._batch import Batch, Completion, Message, Prompt, Sample
from openinfer.llm._prompts import (
    AskedParams,
    check_prompt,
    conversations_of,
    params_of,
    prompts_of,
)
from openinfer.llm._sampling_params import SamplingParams, to_request_rejected
from openinfer.options._flags import FLAGS
from openinfer.options._named_options import find_flag, named_options
from openinfer.options._text_options import TextOptions
from openinfer_contract import EngineDead, EventBuffer, pack_ids
from openinfer_engine import InProcessEngine, launch_line
from openinfer_text import (
    ChatPrompt,
    FieldRejected,
    InvalidChatInput,
    NoChatTemplate,
    OutputDelta,
    RequestLowering,
    StructureError,
    TemplateError,
    check_tools,
)

_OPTIONS = frozenset(
    flag.dest
    for flag in FLAGS
    if flag.scope in ("engine", "text") or flag.dest in ("revision", "download_dir", "model_line")
)


class LLM:
    """A model loaded into this process. Use it from one thread; close it or use `with`.

    Args:
        model: folder, installed checkpoint name or hub id; None for the built-in model.
        options: flags of `openinfer serve` about the model, the engine and the text, in any
            spelling, with underscores: `max_model_len="32k"`, `kv_cache_memory_bytes="4G"`, `tp=1`.
            An option that is None has its default. An unknown option is an error.

    Raises:
        OpenInferError: the model or an option cannot be used. The message says what to do.
    """

    def __init__(self, model: str | os.PathLike[str] | None = None, **options: Any) -> None:
        values, line_values = _convert_options(options)
        prepared = prepare(model, values, line_values=line_values)
        self._start(prepared, values)

    @classmethod
    def _from_flags(
        cls, model: str | None, values: Mapping[str, Any], extra: Sequence[str]
    ) -> "LLM":
        llm = cls.__new__(cls)
        llm._start(prepare(model, values, line_arguments=extra), values)
        return llm

    def _start(self, prepared: Prepared, values: Mapping[str, Any]) -> None:
        spec = prepared.spec
        self.name = prepared.model.name
        self.text = TextOptions.from_values(values).load(prepared.model.path)
        self.engine = InProcessEngine(
            lambda: launch_line(spec),
            spec.engine,
            model_line=spec.model_line,
            tokenizer=Path(spec.model_path) / "tokenizer.json",
        )
        keep_honoured_defaults(self.text, self.engine.info)
        self._numbers = itertools.count()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the model. Idempotent."""
        self.engine.close()
        self.text.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: AskedParams = None,
        *,
        has_progress_bar: bool = True,
    ) -> list[Completion]:
        """Continues prompts; returns the completions prompt by prompt, sample by sample.

        Args:
            prompts: one or several texts or lists of token ids.
            params: parameters for all prompts, or a list with one entry for each prompt.
            has_progress_bar: whether progress is shown on standard error.

        Raises:
            RequestRejected: a prompt or parameter cannot be honoured; nothing ran.
            GenerationFailed: the engine failed.
        """
        batch = prompts_of(prompts)
        asked = params_of(params, len(batch), SamplingParams())
        samples = []
        for index, (prompt, wanted) in enumerate(zip(batch, asked, strict=True)):
            with _naming(f"prompt {index}" if len(batch) > 1 else ""):
                samples += self._samples(self._encode(prompt), wanted, prompt, index)
        return self._run(samples, has_progress_bar=has_progress_bar)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: AskedParams = None,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        has_progress_bar: bool = True,
        **template_options: Any,
    ) -> list[Completion]:
        """Responds to conversations, each a list of messages with `role` and `content`.

        Every completion has a `message` in OpenAI's form, to be appended to its conversation. Its
        `finish_reason` is `tool_calls` if it ends with calls.

        Args:
            conversations: one or several.
            params: as in `generate`. If None, only the context limits the output tokens.
            tools: OpenAI's tool definitions. The model may call them; nothing runs them here.
            template_options: further arguments of `TextModel.encode_chat`, such as
                `chat_template_kwargs`.
            has_progress_bar: as in `generate`.

        Raises:
            RequestRejected: a conversation or parameter cannot be honoured; nothing ran.
            GenerationFailed: the engine failed.
        """
        batch = conversations_of(conversations)
        asked = params_of(params, len(batch), SamplingParams(max_tokens=None))
        samples = []
        for index, (messages, wanted) in enumerate(zip(batch, asked, strict=True)):
            with _naming(f"conversation {index}" if len(batch) > 1 else ""):
                samples += self._chat_samples(
                    messages, wanted, index, tools=tools, **template_options
                )
        return self._run(samples, has_progress_bar=has_progress_bar)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Generator[str, None, None]:
        """Yields the continuation of one prompt piece by piece. Closing the iterator aborts it.

        Raises:
            RequestRejected: the prompt or a parameter cannot be honoured.
            GenerationFailed: the engine failed.
        """
        (params,) = params_of(params, 1, SamplingParams())
        sample, *_ = self._samples(self._encode(prompt), params, prompt)
        for delta in self._deltas(sample):
            yield delta.text

    def _stream_chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        tools: Sequence[Mapping[str, Any]],
    ) -> Generator[OutputDelta, None, None]:
        """Yields the response to a conversation. Closing the iterator aborts the request."""
        sample, *_ = self._chat_samples(messages, params, tools=tools)
        return self._deltas(sample)

    def _deltas(self, sample: Sample) -> Generator[OutputDelta, None, None]:
        buffer = EventBuffer()
        try:
            ticket = self.engine.submit(sample.request, buffer)
        except EngineDead as error:
            raise GenerationFailed(error.reason) from error
        try:
            while not sample.has_ended:
                delta = sample.take(buffer.get_blocking())
                if delta is not None:
                    yield delta
                if sample.is_done:
                    return
        finally:
            if not sample.has_ended:
                ticket.abort()
                while buffer.get_blocking().end is None:
                    pass

    def _encode(self, prompt: Prompt) -> bytes:
        check_prompt(prompt)
        if isinstance(prompt, str):
            try:
                return self.text.encode(prompt)
            except ValueError as error:
                raise RequestRejected(str(error), "prompt") from error
        vocab_size = self.engine.info.vocab_size
        for position, token_id in enumerate(prompt):
            if not 0 <= token_id < vocab_size:
                message = f"token id {token_id} at position {position} is not below {vocab_size}"
                raise RequestRejected(message, "prompt_token_ids")
        return pack_ids(prompt)

    def _encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_options: Any,
    ) -> ChatPrompt:
        template = self.text.chat_template
        if tools and template is not None and not template.takes_tools:
            raise RequestRejected("this model's chat template does not support tools", "tools")
        if tools and self.text.tool_parser is None:
            message = "this model has no tool parser; name one by tool_call_parser"
            raise RequestRejected(message, "tools")
        try:
            check_tools(tools or ())
            return self.text.encode_chat(messages, tools=tools or None, **template_options)
        except InvalidChatInput as error:
            raise RequestRejected(str(error), error.field) from error
        except (NoChatTemplate, TemplateError, ValueError) as error:
            raise RequestRejected(str(error), "messages") from error

    def _chat_samples(
        self,
        messages: Sequence[Message],
        params: SamplingParams,
        index: int = 0,
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_options: Any,
    ) -> list[Sample]:
        chat = self._encode_chat(messages, tools=tools, **template_options)
        return self._samples(chat.token_ids, params, messages, index, chat=chat, tools=tools)

    def _samples(
        self,
        token_ids: bytes,
        params: SamplingParams,
        prompt: Prompt | Sequence[Message],
        index: int = 0,
        *,
        chat: ChatPrompt | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Sample]:
        """Returns the samples of one prompt, ready to be submitted."""
        text, boundaries = self.text, b"" if chat is None else pack_ids(chat.boundaries)
        samples = []
        with _fields_named():
            lowering = self._lowering(params, chat)
            for sample in range(params.n):
                parser = None
                if chat is not None:
                    parser = text.parser(chat.turn, tools=tools, call_ids=chat.call_ids)
                request_id = f"llm-{next(self._numbers)}"
                samples.append(
                    Sample(
                        Completion(prompt=prompt, index=index, sample=sample),
                        lowering.build(request_id, token_ids, boundaries=boundaries, sample=sample),
                        lowering.output_stream(text, token_ids, parser),
                        is_chat=chat is not None,
                    )
                )
        return samples

    def _lowering(self, params: SamplingParams, chat: ChatPrompt | None) -> RequestLowering:
        text, grammar = self.text, params.grammar
        if grammar is not None and chat is not None:
            grammar = text.after_reasoning(grammar, chat.turn)
        return RequestLowering(
            params,
            self.engine.info,
            defaults=text.generation,
            eos_token_ids=text.stop_token_ids,
            bad_words=text.encode_words(params.bad_words),
            grammar=grammar,
        )

    def _run(self, samples: Sequence[Sample], *, has_progress_bar: bool) -> list[Completion]:
        with _progress_bar(len(samples), is_shown=has_progress_bar) as advance:
            Batch(self.engine, samples, advance).run()
        return [sample.completion for sample in samples]


def _convert_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits keyword options into values of `FLAGS` and options of the model line."""
    for name in options:
        flag = find_flag(name)
        if flag is not None and flag.dest == "model":
            raise UsageError(f"{name} is called model, and is LLM's first argument")
        if flag is not None and flag.dest not in _OPTIONS:
            raise UsageError(f"{name} is an option of the server, not of LLM")
    return named_options(options.items())


@contextmanager
def _naming(part: str) -> Iterator[None]:
    """Prefixes the message of a refusal with the prompt or conversation that it is about."""
    try:
        yield
    except RequestRejected as error:
        if not part:
            raise
        raise RequestRejected(f"{part}: {error}", error.field) from error


@contextmanager
def _fields_named() -> Iterator[None]:
    """Converts rejections by `openinfer_text` to `RequestRejected`."""
    try:
        yield
    except FieldRejected as error:
        raise to_request_rejected(error.rejected) from error
    except StructureError as error:
        field = f"structured_outputs.{error.field}".rstrip(".")
        raise RequestRejected(str(error), field) from error


@contextmanager
def _progress_bar(total: int, *, is_shown: bool) -> Iterator[Callable[[], None]]:
    if not is_shown:
        yield lambda: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, unit="seq", dynamic_ncols=True) as bar:
        yield lambda: (bar.update(), None)[1]
