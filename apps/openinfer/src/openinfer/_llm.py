"""`LLM`: an engine and a tokenizer in this process, for batches, notebooks and the terminal."""

import argparse
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from typing import Any

from openinfer._batch import Batch, Completion, Message, Prompt, Sample
from openinfer._defaults import keep_honoured_defaults
from openinfer._flags import FLAGS, convert_option
from openinfer._prepare import Prepared, prepare, read_template
from openinfer._sampling_params import SamplingParams
from openinfer.errors import GenerationFailed, RequestRejected, UsageError
from openinfer_contract import (
    EngineDead,
    EventBuffer,
    GenerateRequest,
    check_request,
    pack_ids,
    unpack_ids,
)
from openinfer_engine import InProcessEngine, launch_line
from openinfer_text import InvalidChatInput, NoChatTemplate, OutputText, TemplateError, TextModel

_OPTIONS = {
    flag.dest: flag
    for flag in FLAGS
    if flag.scope == "engine"
    or flag.dest in {"revision", "download_dir", "model_line", "chat_template"}
}
_SERVER_ONLY = {flag.dest for flag in FLAGS} - _OPTIONS.keys()


_CONTEXT_BYTES = 32
"""The last eight ids of a prompt: what the text of an output may continue."""


class LLM:
    """A model loaded into this process. Use it from one thread; close it or use `with`.

    Args:
        model: folder, installed checkpoint name or hub id; None for the built-in model.
        options: what `openinfer serve` takes, with underscores: `max_model_len="32k"`,
            `kv_cache_bytes="4G"`, `device="cpu"`, ...; what nobody consumes is an error.

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
        self.text = TextModel.from_folder(
            prepared.model.path, chat_template=read_template(values.get("chat_template"))
        )
        self.engine = InProcessEngine(
            lambda: launch_line(spec), spec.engine, model_line=spec.model_line
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

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | None = None,
        *,
        has_progress_bar: bool = True,
    ) -> list[Completion]:
        """Continues prompts, as texts or token ids; prompt by prompt, sample by sample.

        Raises:
            RequestRejected: a prompt or parameter cannot be honoured; nothing ran.
            GenerationFailed: the engine could not go on.
        """
        params = params or SamplingParams()
        batch: list[Any] = [prompts] if _is_one(prompts) else list(prompts)
        encoded = [self._encode(prompt) for prompt in batch]
        return self._run(batch, encoded, params, has_progress_bar=has_progress_bar)

    def chat(
        self,
        conversations: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | None = None,
        *,
        has_progress_bar: bool = True,
        **template_options: Any,
    ) -> list[Completion]:
        """Answers conversations, each a list of messages with `role` and `content`.

        Args:
            conversations: one or several.
            params: how to generate; without them, up to the end of the answer.
            has_progress_bar: whether progress shows on stderr.
            template_options: as `TextModel.encode_chat`: `chat_template_kwargs`, ...

        Raises:
            RequestRejected: a conversation or parameter cannot be honoured; nothing ran.
            GenerationFailed: the engine could not go on.
        """
        params = params or SamplingParams(max_tokens=None)
        is_one = bool(conversations) and isinstance(conversations[0], Mapping)
        batch: Any = [conversations] if is_one else list(conversations)
        encoded = [self._encode_chat(messages, **template_options) for messages in batch]
        return self._run(batch, encoded, params, has_progress_bar=has_progress_bar)

    def stream(self, prompt: Prompt | bytes, params: SamplingParams | None = None) -> Iterator[str]:
        """The continuation of one prompt, piece by piece; closing the iterator ends it.

        Raises:
            RequestRejected: it cannot be honoured.
            GenerationFailed: the engine could not go on.
        """
        params = params or SamplingParams()
        ids = prompt if isinstance(prompt, bytes) else self._encode(prompt)
        request = self._request(ids, params, 0)
        sample = Sample(
            Completion(prompt="", index=0),
            request,
            self._output(params, ids),
            params.stop_token_ids,
        )
        buffer = EventBuffer()
        try:
            ticket = self.engine.submit(request, buffer)
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
        if isinstance(prompt, str):
            return self.text.encode(prompt)
        vocab_size = self.engine.info.vocab_size
        for position, token_id in enumerate(prompt):
            if not 0 <= token_id < vocab_size:
                message = f"token id {token_id} at position {position} is not below {vocab_size}"
                raise RequestRejected(message, "prompt_token_ids")
        return pack_ids(prompt)

    def _encode_chat(self, messages: Sequence[Message], **template_options: Any) -> bytes:
        try:
            return self.text.encode_chat(messages, **template_options).token_ids
        except InvalidChatInput as error:
            raise RequestRejected(str(error), error.field) from error
        except (NoChatTemplate, TemplateError) as error:
            raise RequestRejected(str(error), "messages") from error

    def _output(self, params: SamplingParams, prompt_token_ids: bytes) -> OutputText:
        eos = () if params.ignore_eos else (*self.engine.info.eos_token_ids, *self._own_eos())
        return self.text.output(
            stops=params.stops,
            include_stop_str_in_output=params.include_stop_str_in_output,
            stop_token_ids=(*eos, *params.stop_token_ids),
            min_tokens=params.min_tokens,
            skip_special_tokens=params.skip_special_tokens,
            context_ids=unpack_ids(prompt_token_ids[-_CONTEXT_BYTES:]),
        )

    def _own_eos(self) -> tuple[int, ...]:
        """Ids that end a sequence by the tokenizer's word alone."""
        known = self.engine.info.eos_token_ids
        return tuple(i for i in self.text.stop_token_ids if i not in known)

    def _request(self, token_ids: bytes, params: SamplingParams, sample: int) -> GenerateRequest:
        info = self.engine.info
        request = params.lower(
            f"llm-{next(self._numbers)}",
            token_ids,
            sample=sample,
            max_model_len=info.limits.max_model_len,
            defaults=self.text.generation,
            eos_token_ids=self._own_eos(),
        )
        rejected = check_request(request, info)
        if rejected is not None:
            raise RequestRejected(rejected.message, rejected.field)
        return request

    def _run(
        self,
        prompts: Sequence[Any],
        encoded: Sequence[bytes],
        params: SamplingParams,
        *,
        has_progress_bar: bool,
    ) -> list[Completion]:
        samples = [
            Sample(
                Completion(prompt=prompt, index=index, sample=sample),
                self._request(ids, params, sample),
                self._output(params, ids),
                params.stop_token_ids,
            )
            for index, (prompt, ids) in enumerate(zip(prompts, encoded, strict=True))
            for sample in range(params.n)
        ]
        with _progress_bar(len(samples), is_shown=has_progress_bar) as advance:
            Batch(self.engine, samples, advance).run()
        return [sample.completion for sample in samples]


class LocalModel:
    """An `LLM` as the terminal commands use a model."""

    def __init__(
        self, model: str | None, namespace: argparse.Namespace, extra: Sequence[str]
    ) -> None:
        self._llm = LLM._from_flags(model, vars(namespace), extra)
        self.name = self._llm.name

    def stream_chat(
        self, messages: list[dict[str, Any]], options: Mapping[str, Any]
    ) -> Iterator[str]:
        """The answer to a conversation, piece by piece; closing the iterator ends it."""
        prompt = self._llm._encode_chat(messages)
        return self._llm.stream(prompt, SamplingParams(**{"max_tokens": None, **options}))

    def stream_completion(self, prompt: str, options: Mapping[str, Any]) -> Iterator[str]:
        """The continuation of a text, piece by piece; closing the iterator ends it."""
        return self._llm.stream(prompt, SamplingParams(**{"max_tokens": 128, **options}))

    def close(self) -> None:
        """Frees the model."""
        self._llm.close()


def _convert_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits keyword options into those of the flag table and those of the model's own line."""
    values, line_values = {}, {}
    for name, value in options.items():
        if name in _SERVER_ONLY:
            raise UsageError(f"{name} is an option of the server, not of LLM")
        if value is None:
            continue
        if name in _OPTIONS:
            values[name] = convert_option(_OPTIONS[name], value, name)
        else:
            line_values[name] = value
    return values, line_values


def _is_one(prompts: Prompt | Sequence[Prompt]) -> bool:
    # Integral, not int: ids also come out of numpy arrays.
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral))


@contextmanager
def _progress_bar(total: int, *, is_shown: bool) -> Iterator[Callable[[], None]]:
    if not is_shown:
        yield lambda: None
        return
    from tqdm.auto import tqdm

    with tqdm(total=total, unit="seq", dynamic_ncols=True) as bar:
        yield lambda: (bar.update(), None)[1]
