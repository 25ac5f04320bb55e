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
from openinfer.llm._sampling_params import SamplingParams, refused
from openinfer.options._flags import FLAGS
from openinfer.options._named_options import find_flag, named_options
from openinfer.options._text_options import TextOptions
from openinfer_contract import (
    EngineDead,
    EventBuffer,
    GenerateRequest,
    check_request,
    pack_ids,
    unpack_ids,
)
from openinfer_engine import InProcessEngine, launch_line
from openinfer_text import (
    ChatPrompt,
    InvalidChatInput,
    NoChatTemplate,
    OutputParser,
    OutputText,
    ParseContext,
    StructureError,
    TemplateError,
    check_tools,
)

_OPTIONS = {
    flag.dest
    for flag in FLAGS
    if flag.scope == "engine"
    or flag.dest in {"revision", "download_dir", "model_line", "chat_template"}
    or flag.dest in {"tool_call_parser", "reasoning_parser", "tokenizer_backend"}
}
_CONTEXT_BYTES = 32
"""The last eight ids of a prompt: what the text of an output may continue."""


class LLM:
    """A model loaded into this process. Use it from one thread; close it or use `with`.

    Args:
        model: folder, installed checkpoint name or hub id; None for the built-in model.
        options: the engine's flags of `openinfer serve`, in any spelling, with underscores:
            `max_model_len="32k"`, `kv_cache_memory_bytes="4G"`, `tp=1`, ...; None is as if it were
            left out, and what nobody consumes is an error.

    Raises:
        OpenInferError: a sentence that says what to do.
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
        """Continues prompts, as texts or token ids; prompt by prompt, sample by sample.

        Args:
            prompts: one or several.
            params: how to generate, for all of them, or a list with one for each prompt.
            has_progress_bar: whether progress shows on stderr.

        Raises:
            RequestRejected: a prompt or parameter cannot be honoured; nothing ran.
            GenerationFailed: the engine could not go on.
        """
        batch = prompts_of(prompts)
        asked = params_of(params, len(batch), SamplingParams())
        samples = []
        for index, (prompt, wanted) in enumerate(zip(batch, asked, strict=True)):
            with _named(f"prompt {index}" if len(batch) > 1 else ""):
                ids = self._encode(prompt)
                samples += [
                    self._sample(ids, wanted, Completion(prompt=prompt, index=index, sample=sample))
                    for sample in range(wanted.n)
                ]
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
        """Answers conversations, each a list of messages with `role` and `content`.

        Every completion has a `message`, the answer in OpenAI's form, to be appended to its
        conversation; `finish_reason` is `tool_calls` when it ends in calls.

        Args:
            conversations: one or several.
            params: how to generate, for all of them or one by one; without them, up to the end of
                the answer.
            tools: OpenAI's tool definitions, which the model may call. None of them is run here.
            has_progress_bar: whether progress shows on stderr.
            template_options: as `TextModel.encode_chat`: `chat_template_kwargs`, ...

        Raises:
            RequestRejected: a conversation or parameter cannot be honoured; nothing ran.
            GenerationFailed: the engine could not go on.
        """
        batch = conversations_of(conversations)
        asked = params_of(params, len(batch), SamplingParams(max_tokens=None))
        samples = []
        for index, (messages, wanted) in enumerate(zip(batch, asked, strict=True)):
            with _named(f"conversation {index}" if len(batch) > 1 else ""):
                chat = self._encode_chat(messages, tools=tools, **template_options)
                samples += [
                    self._chat_sample(
                        chat,
                        wanted,
                        Completion(prompt=messages, index=index, sample=sample),
                        tools=tools,
                    )
                    for sample in range(wanted.n)
                ]
        return self._run(samples, has_progress_bar=has_progress_bar)

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None
    ) -> Generator[str, None, None]:
        """The continuation of one prompt, piece by piece; closing the iterator ends it.

        Raises:
            RequestRejected: it cannot be honoured.
            GenerationFailed: the engine could not go on.
        """
        (params,) = params_of(params, 1, SamplingParams())
        ids = self._encode(prompt)
        yield from self._stream(self._sample(ids, params, Completion(prompt="", index=0)))

    def _stream(self, sample: Sample) -> Generator[str, None, None]:
        """The new text of every event; closing the iterator ends the request."""
        buffer = EventBuffer()
        try:
            ticket = self.engine.submit(sample.request, buffer)
        except EngineDead as error:
            raise GenerationFailed(error.reason) from error
        try:
            while not sample.has_ended:
                yield sample.take(buffer.get_blocking())
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
            raise RequestRejected("this model's chat template has no place for tools", "tools")
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

    def _chat_sample(
        self,
        chat: ChatPrompt,
        params: SamplingParams,
        completion: Completion,
        *,
        tools: Sequence[Mapping[str, Any]] | None,
    ) -> Sample:
        parser = self.text.parser(chat.turn, tools=tools, call_ids=chat.call_ids)
        if parser is None:
            parser = OutputParser(ParseContext(), reasoning=None, tools=None)
        return self._sample(chat.token_ids, params, completion, parser, chat.turn)

    def _sample(
        self,
        token_ids: bytes,
        params: SamplingParams,
        completion: Completion,
        parser: OutputParser | None = None,
        turn: str | None = None,
    ) -> Sample:
        return Sample(
            completion,
            self._request(token_ids, params, completion.sample, turn),
            self._output(params, token_ids, parser.markers if parser else ()),
            params.stop_token_ids,
            parser,
        )

    def _output(
        self, params: SamplingParams, prompt_token_ids: bytes, shown_tokens: Sequence[str]
    ) -> OutputText:
        eos = () if params.ignore_eos else (*self.engine.info.eos_token_ids, *self._own_eos())
        return self.text.output(
            stops=params.stops,
            include_stop_str_in_output=params.include_stop_str_in_output,
            stop_token_ids=(*eos, *params.stop_token_ids),
            min_tokens=params.min_tokens,
            skip_special_tokens=params.skip_special_tokens,
            shown_tokens=shown_tokens,
            context_ids=unpack_ids(prompt_token_ids[-_CONTEXT_BYTES:]),
        )

    def _own_eos(self) -> tuple[int, ...]:
        """Ids that end a sequence by the tokenizer's word alone."""
        known = self.engine.info.eos_token_ids
        return tuple(i for i in self.text.stop_token_ids if i not in known)

    def _request(
        self, token_ids: bytes, params: SamplingParams, sample: int, turn: str | None
    ) -> GenerateRequest:
        info = self.engine.info
        try:
            grammar = params.grammar
        except StructureError as error:
            field = f"structured_outputs.{error.field}".rstrip(".")
            raise RequestRejected(str(error), field) from error
        if grammar is not None and turn is not None:
            grammar = self.text.after_reasoning(grammar, turn)
        request = params.lower(
            f"llm-{next(self._numbers)}",
            token_ids,
            sample=sample,
            max_model_len=info.limits.max_model_len,
            defaults=self.text.generation,
            eos_token_ids=self._own_eos(),
            grammar=grammar,
        )
        rejected = check_request(request, info)
        if rejected is not None:
            raise refused(rejected)
        return request

    def _run(self, samples: Sequence[Sample], *, has_progress_bar: bool) -> list[Completion]:
        with _progress_bar(len(samples), is_shown=has_progress_bar) as advance:
            Batch(self.engine, samples, advance).run()
        return [sample.completion for sample in samples]


def _convert_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits keyword options into those of the flag table and those of the model's own line."""
    for name in options:
        flag = find_flag(name)
        if flag is not None and flag.dest == "model":
            raise UsageError(f"{name} is called model, and is LLM's first argument")
        if flag is not None and flag.dest not in _OPTIONS:
            raise UsageError(f"{name} is an option of the server, not of LLM")
    return named_options(options.items())


@contextmanager
def _named(what: str) -> Iterator[None]:
    """Says of a refusal which part of a batch it is about."""
    try:
        yield
    except RequestRejected as error:
        if not what:
            raise
        raise RequestRejected(f"{what}: {error}", error.field) from error


@contextmanager
def _progress_bar(total: int, *, is_shown: bool) -> Iterator[Callable[[], None]]:
    if not is_shown:
        yield lambda: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, unit="seq", dynamic_ncols=True) as bar:
        yield lambda: (bar.update(), None)[1]
