"""The routes that generate: completions, chat completions, Responses, Messages."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from openinfer_contract import EngineHandle, GenerateRequest, num_ids, unpack_ids
from openinfer_frontend._backend import Backend
from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._generation import Generation
from openinfer_frontend.generation._lowering import (
    DEFAULT_COMPLETION_TOKENS,
    Lowering,
    RequestContext,
)
from openinfer_frontend.generation._structured_output import WantedForm, check_form, wanted_form
from openinfer_frontend.generation._text_work import Prompt
from openinfer_frontend.http._exchange import Exchange
from openinfer_frontend.http._response_writer import send_stream, send_whole
from openinfer_frontend.protocols._generation_request import (
    MAX_PRIORITY,
    MAX_SESSION_ID_CHARS,
    GenerationRequest,
    StreamOptions,
)
from openinfer_frontend.protocols._response_format import (
    REASONING_NAMES,
    AnswerFormat,
    FormatOptions,
)
from openinfer_frontend.protocols._validation_errors import renaming_errors
from openinfer_frontend.protocols.anthropic._messages_format import MessagesFormat
from openinfer_frontend.protocols.anthropic._messages_request import MessagesRequest
from openinfer_frontend.protocols.openai._chat_request import ChatRequest
from openinfer_frontend.protocols.openai._choices_format import ChatFormat, CompletionFormat
from openinfer_frontend.protocols.openai._completion_request import CompletionRequest
from openinfer_frontend.protocols.openai._logprobs import TokenNames
from openinfer_frontend.protocols.openai._parsed_chat_format import ParsedChatFormat
from openinfer_frontend.protocols.responses._responses_format import ResponsesFormat
from openinfer_frontend.protocols.responses._responses_request import ResponsesRequest
from openinfer_text import OutputParser, OutputText, StopSet

MakeFormat = Callable[[FormatOptions, Sequence[GenerateRequest], int], AnswerFormat]
"""Makes the wire format of one response, for these choices, so many of each prompt."""

_MAX_INLINE_SCORES = 1024
"""Scores of so many tokens are spelled on the event loop: about a millisecond."""
_INTEGER = re.compile(r"[-+]?[0-9]{1,16}")
_CONTEXT_BYTES = 32
"""The last eight ids of a prompt: what the text of an output may continue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A request that passed every check that needs no prompt."""

    request: GenerationRequest
    context: RequestContext
    engine: EngineHandle
    lowering: Lowering
    form: WantedForm | None


class GenerateRoutes:
    """The routes that generate, whatever protocol they speak.

    Every conversation is a `ChatRequest` by the time it is checked and rendered.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._text = backend.text

    async def completions(self, exchange: Exchange) -> None:
        """POST /v1/completions."""
        request = await exchange.read_model(CompletionRequest)
        context = _context(exchange, request, "cmpl-", "prompt", DEFAULT_COMPLETION_TOKENS)
        with self._backend.admitted(), exchange.watched():
            job = self._check(request, context, len(request.prompts))
            if job.form is not None:
                await self._check_form(job.form)
            prompts = await self._text.encode_prompts(
                request.prompts,
                add_special_tokens=request.add_special_tokens,
                vocab_size=job.engine.info.vocab_size,
                size=exchange.num_body_bytes,
            )
            echoes = await self._echoes(request) if request.echo else ()
            exchange.spans.mark("tokenize")
            await self._answer(exchange, job, prompts, CompletionFormat, echoes)

    async def chat(self, exchange: Exchange) -> None:
        """POST /v1/chat/completions."""
        request = await exchange.read_model(ChatRequest)
        await self._converse(exchange, request, "chatcmpl-", chat_format)

    async def responses(self, exchange: Exchange) -> None:
        """POST /v1/responses."""
        body = await exchange.read_model(ResponsesRequest)
        body.refuse_unsupported()
        chat = self._text.placed(body.conversation())
        make_format = partial(ResponsesFormat, request=body)
        with renaming_errors(body.field_names()):
            await self._converse(exchange, chat, "resp_", make_format)

    async def messages(self, exchange: Exchange) -> None:
        """POST /v1/messages."""
        body = await exchange.read_model(MessagesRequest)
        body.refuse_unsupported()
        chat = self._text.placed(body.conversation())
        names = body.field_names()
        with renaming_errors(names):
            make_format = partial(MessagesFormat, names=names)
            await self._converse(exchange, chat, "msg_", make_format)

    async def _converse(
        self, exchange: Exchange, request: ChatRequest, id_prefix: str, make_format: MakeFormat
    ) -> None:
        default = self._text.defaults(self._backend.config.generation_config).max_new_tokens
        context = _context(exchange, request, id_prefix, "messages", default)
        with self._backend.admitted(), exchange.watched():
            self._check_tools(request)
            job = self._check(request, context, 1)
            if job.form is not None:
                await self._check_form(job.form)
            prompt = await self._text.encode_chat(request, size=exchange.num_body_bytes)
            if job.form is not None:
                job.lowering.grammar = self._text.model.behind_reasoning(
                    job.form.grammar, prompt.turn
                )
            exchange.spans.mark("tokenize")
            await self._answer(exchange, job, [prompt], make_format)

    def _check(self, request: GenerationRequest, context: RequestContext, num_prompts: int) -> _Job:
        config = self._backend.config
        self._backend.check_model(request.model)
        request.refuse_unsupported()
        if num_prompts * request.n > config.max_sequences:
            message = f"prompts times n must not exceed {config.max_sequences}"
            raise ApiError(400, message, param="n" if request.n > 1 else context.prompt_param)
        engine = self._backend.engine()
        most = engine.info.limits.max_queued_requests
        if 1 < num_prompts * request.n > most:
            # They come to the engine together. Its own answer, 503, would be tried again in vain.
            message = (
                f"prompts times n must not exceed {most}: no more may wait at this server "
                "(--max-num-queued-reqs)"
            )
            raise ApiError(400, message, param="n" if request.n > 1 else context.prompt_param)
        form = wanted_form(request, self._text.model.tool_parser)
        lowering = Lowering(
            request,
            context,
            engine.info,
            self._text.defaults(config.generation_config),
            self._text.model.stop_token_ids,
            self._text.encode_words(request.bad_words or ()),
            form,
            config.request_timeout_s,
        )
        return _Job(request=request, context=context, engine=engine, lowering=lowering, form=form)

    async def _check_form(self, form: WantedForm) -> None:
        check = self._backend.config.check_grammar
        if check is not None:
            await self._text.run_long(partial(check_form, form, check))

    def _check_tools(self, request: ChatRequest) -> None:
        if request.offered_tools and self._text.model.tool_parser is None:
            message = (
                "tools: this server has no tool parser for its model; "
                "its operator can name one with --tool-call-parser"
            )
            raise ApiError(400, message, param="tools")

    def _parsers(self, request: GenerationRequest, prompt: Prompt) -> list[OutputParser]:
        """What finds reasoning and tool calls, one parser each choice; none if there is nothing."""
        if not isinstance(request, ChatRequest):
            return []
        parsers = (
            self._text.model.parser(
                prompt.turn,
                tools=request.offered_tools,
                call_ids=prompt.call_ids,
                has_parallel_calls=request.parallel_tool_calls is not False,
                is_call_named=isinstance(request.tool_choice, dict),
            )
            for _ in range(request.n)
        )
        return [parser for parser in parsers if parser is not None]

    async def _echoes(self, request: CompletionRequest) -> list[str]:
        return [
            prompt if isinstance(prompt, str) else await self._text.decode(prompt)
            for prompt in request.prompts
        ]

    async def _answer(
        self,
        exchange: Exchange,
        job: _Job,
        prompts: Sequence[Prompt],
        make_format: MakeFormat,
        echoes: Sequence[str] = (),
    ) -> None:
        request, context, config = job.request, job.context, self._backend.config
        requests = _lowered(job, prompts)
        _check_tokens(requests, job)
        generation = Generation(
            job.engine,
            requests,
            num_samples=request.n,
            eos_token_ids=job.lowering.eos_token_ids,
            prompt_param=context.prompt_param,
            grammar_param=None if job.form is None else job.form.exact_param,
            limit_s=job.lowering.limit_s,
            is_prompt_only=request.wanted_max_tokens == 0,
            hand_over=self._backend.hand_over if config.resume_timeout_s else None,
            metrics=self._backend.metrics,
        )
        with self._backend.listed(context.response_id, generation), generation:
            exchange.spans.mark("submit")
            self._backend.polling.touch()
            # From here on the engine works: what the answer alone needs is made meanwhile.
            parsers = self._parsers(request, prompts[0])
            markers = parsers[0].markers if parsers else ()
            generation.set_outputs(self._outputs(job, prompts, markers))
            options = self._options(exchange, job, echoes, parsers)
            form = make_format(options, generation.requests, request.n)
            num_echoed = _num_prompt_scores(options, prompts)
            await self._send(exchange, request, generation, form, num_echoed)
        if isinstance(request, ChatRequest) and request.offered_tools and generation.is_whole:
            # Of what was cut off nobody knows whether it would have had a call.
            for parser in parsers:
                self._backend.metrics.searched(
                    exchange.route_path, is_stream=request.stream, has_call=parser.has_call
                )

    async def _send(
        self,
        exchange: Exchange,
        request: GenerationRequest,
        generation: Generation,
        form: AnswerFormat,
        num_echoed: int,
    ) -> None:
        """Answers whole or event by event; so many scores stand before the output."""
        run_long = self._text.run_long
        if request.stream:
            is_apart = num_echoed > _MAX_INLINE_SCORES
            failure = await send_stream(exchange, generation, form, run_long if is_apart else None)
            if failure is not None and failure.refusal is not None:
                self._backend.metrics.refused(failure.refusal)
            return

        def is_long() -> bool:
            is_scored = request.num_top_logprobs is not None
            num_scores = generation.usage().num_output_tokens if is_scored else 0
            return num_echoed + num_scores > _MAX_INLINE_SCORES

        await send_whole(exchange, generation, form, run_long, is_long=is_long)

    def _options(
        self,
        exchange: Exchange,
        job: _Job,
        echoes: Sequence[str],
        parsers: Sequence[OutputParser],
    ) -> FormatOptions:
        request, config = job.request, self._backend.config
        stream_options = request.stream_options or StreamOptions()
        return FormatOptions(
            response_id=job.context.response_id,
            request_id=exchange.request_id,
            model=request.model or config.model_name,
            names=TokenNames(
                self._text.model.tokenizer,
                as_ids=request.return_tokens_as_token_ids,
                scored_ids=request.logprob_token_ids or (),
            ),
            return_token_ids=request.return_token_ids,
            return_timings=request.return_timings,
            include_usage=stream_options.include_usage,
            continuous_usage=stream_options.continuous_usage_stats,
            reasoning_names=(
                REASONING_NAMES if config.reasoning_field == "both" else (config.reasoning_field,)
            ),
            include_reasoning=not isinstance(request, ChatRequest) or request.include_reasoning,
            echoes=echoes,
            num_top_echoed=request.num_top_logprobs if echoes else None,
            num_top_prompt=request.prompt_logprobs,
            parsers=parsers,
        )

    def _outputs(
        self, job: _Job, prompts: Sequence[Prompt], markers: Sequence[str]
    ) -> list[OutputText]:
        """The text that comes of every sample of every prompt."""
        request, stops = job.request, StopSet(job.request.stops)
        return [
            self._text.model.output(
                stops=stops,
                include_stop_str_in_output=request.include_stop_str_in_output,
                stop_token_ids=job.lowering.stop_token_ids,
                min_tokens=request.min_tokens,
                skip_special_tokens=request.skip_special_tokens,
                shown_tokens=markers,
                spaces_between_special_tokens=request.spaces_between_special_tokens,
                context_ids=unpack_ids(prompt.token_ids[-_CONTEXT_BYTES:]),
                is_located=isinstance(request, CompletionRequest) and request.logprobs is not None,
            )
            for prompt in prompts
            for _ in range(request.n)
        ]


def chat_format(
    options: FormatOptions, requests: Sequence[GenerateRequest], num_samples: int
) -> AnswerFormat:
    """What chat completions look like, with parsers or without."""
    make = ParsedChatFormat if options.parsers else ChatFormat
    return make(options, requests, num_samples)


def _lowered(job: _Job, prompts: Sequence[Prompt]) -> list[GenerateRequest]:
    """What the engine gets of every sample of every prompt."""
    request, response_id = job.request, job.context.response_id
    is_single = len(prompts) * request.n == 1
    return [
        job.lowering.build(
            prompt,
            sample,
            response_id if is_single else f"{response_id}-{number * request.n + sample}",
        )
        for number, prompt in enumerate(prompts)
        for sample in range(request.n)
    ]


def _check_tokens(requests: Sequence[GenerateRequest], job: _Job) -> None:
    """Refuses what would not fit an empty queue of the engine, and 503 would be tried again for."""
    most = job.engine.info.limits.max_queued_tokens
    num_tokens = sum(request.num_prompt_tokens for request in requests)
    if len(requests) > 1 and num_tokens > most:
        message = (
            f"prompts times n have {num_tokens} tokens: no more than {most} may wait at this "
            "server (--max-num-queued-tokens)"
        )
        param = job.context.prompt_param
        raise ApiError(400, message, param=param)


def _context(
    exchange: Exchange,
    request: GenerationRequest,
    id_prefix: str,
    prompt_param: str,
    default_max_tokens: int | None,
) -> RequestContext:
    if request.request_id is not None:
        exchange.offer_request_id(request.request_id)
    return RequestContext(
        response_id=id_prefix + exchange.request_id,
        prompt_param=prompt_param,
        default_max_tokens=default_max_tokens,
        tenant=exchange.header("x-tenant-id") or "",
        session_id=_session_id(exchange),
        priority=_priority(exchange),
        trace_parent=exchange.header("traceparent") or "",
    )


def _session_id(exchange: Exchange) -> str:
    """What a gateway says of the request's session; bounded as a body's word is."""
    given = exchange.header("x-session-id") or ""
    if len(given) > MAX_SESSION_ID_CHARS:
        message = f"X-Session-ID must be at most {MAX_SESSION_ID_CHARS} characters"
        raise ApiError(400, message, param="X-Session-ID")
    return given


def _priority(exchange: Exchange) -> int | None:
    """What a gateway says of the request's priority, in vLLM's header."""
    given = exchange.header("x-vllm-priority")
    if given is None:
        return None
    if not _INTEGER.fullmatch(given) or not -MAX_PRIORITY <= int(given) < MAX_PRIORITY:
        message = f"X-Vllm-Priority must be an integer, ≥ {-MAX_PRIORITY} and < {MAX_PRIORITY}"
        raise ApiError(400, message, param="X-Vllm-Priority")
    return int(given)


def _num_prompt_scores(options: FormatOptions, prompts: Sequence[Prompt]) -> int:
    """How many tokens of all prompts are to be spelled with their scores."""
    is_scored = options.num_top_echoed is not None or options.num_top_prompt is not None
    return sum(num_ids(p.token_ids) for p in prompts) if is_scored else 0
