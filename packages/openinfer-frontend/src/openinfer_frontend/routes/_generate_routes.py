"""The routes that generate: completions, chat completions, Responses, Messages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from openinfer_contract import EngineHandle, GenerateRequest, num_ids
from openinfer_frontend._backend import Backend
from openinfer_frontend.errors import ApiError
from openinfer_frontend.generation._generation import Generation
from openinfer_frontend.generation._lowering import (
    DEFAULT_COMPLETION_TOKENS,
    Lowering,
    RequestContext,
)
from openinfer_frontend.generation._structured_output import (
    OutputConstraint,
    check_constraint,
    output_constraint,
)
from openinfer_frontend.generation._text_work import Prompt
from openinfer_frontend.http._http_exchange import HttpExchange
from openinfer_frontend.http._response_writer import ResponseWriter
from openinfer_frontend.protocols._generation_request import GenerationRequest, StreamOptions
from openinfer_frontend.protocols._validation_errors import renaming_errors
from openinfer_frontend.protocols._wire_format import REASONING_NAMES, FormatOptions, WireFormat
from openinfer_frontend.protocols.anthropic._messages_format import MessagesFormat
from openinfer_frontend.protocols.anthropic._messages_request import MessagesRequest
from openinfer_frontend.protocols.openai._chat_request import ChatRequest
from openinfer_frontend.protocols.openai._choices_format import ChatFormat, CompletionFormat
from openinfer_frontend.protocols.openai._completion_request import CompletionRequest
from openinfer_frontend.protocols.openai._logprobs import TokenNames
from openinfer_frontend.protocols.openai._parsed_chat_format import ParsedChatFormat
from openinfer_frontend.protocols.responses._responses_format import ResponsesFormat
from openinfer_frontend.protocols.responses._responses_request import ResponsesRequest
from openinfer_frontend.routes._request_context import request_context
from openinfer_text import OutputParser, OutputStream

MakeFormat = Callable[[FormatOptions, Sequence[GenerateRequest], int], WireFormat]
"""Makes the wire format of one response from its engine requests and the samples per prompt."""

_MAX_INLINE_SCORES = 1024
"""Logprobs of at most this many tokens are encoded on the event loop, in about a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _CheckedRequest:
    """A request that has passed all checks except those of its prompt."""

    request: GenerationRequest
    context: RequestContext
    engine: EngineHandle
    lowering: Lowering
    constraint: OutputConstraint | None


class GenerateRoutes:
    """The routes that generate, in all protocols.

    A conversation of any protocol is a `ChatRequest` when it is checked and rendered.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._text = backend.text

    async def completions(self, exchange: HttpExchange) -> None:
        """Handles POST /v1/completions."""
        request = await exchange.read_model(CompletionRequest)
        context = request_context(exchange, request, "cmpl-", "prompt", DEFAULT_COMPLETION_TOKENS)
        with self._backend.admitted(), exchange.watched():
            checked = await self._check(request, context, len(request.prompts))
            prompts = await self._text.encode_prompts(
                request.prompts,
                add_special_tokens=request.add_special_tokens,
                vocab_size=checked.engine.info.vocab_size,
                size=exchange.num_body_bytes,
            )
            echoes = await self._echoes(request) if request.echo else ()
            exchange.spans.mark("tokenize")
            await self._generate(exchange, checked, prompts, CompletionFormat, echoes)

    async def chat(self, exchange: HttpExchange) -> None:
        """Handles POST /v1/chat/completions."""
        request = await exchange.read_model(ChatRequest)
        await self._converse(exchange, request, "chatcmpl-", chat_format)

    async def responses(self, exchange: HttpExchange) -> None:
        """Handles POST /v1/responses."""
        body = await exchange.read_model(ResponsesRequest)
        body.refuse_unsupported()
        chat = self._text.fold_late_system_messages(body.conversation())
        make_format = partial(ResponsesFormat, request=body)
        with renaming_errors(body.field_names()):
            await self._converse(exchange, chat, "resp_", make_format)

    async def messages(self, exchange: HttpExchange) -> None:
        """Handles POST /v1/messages."""
        body = await exchange.read_model(MessagesRequest)
        body.refuse_unsupported()
        chat = self._text.fold_late_system_messages(body.conversation())
        names = body.field_names()
        with renaming_errors(names):
            make_format = partial(MessagesFormat, names=names)
            await self._converse(exchange, chat, "msg_", make_format)

    async def _converse(
        self, exchange: HttpExchange, request: ChatRequest, id_prefix: str, make_format: MakeFormat
    ) -> None:
        default = self._text.defaults(self._backend.config.generation_config).max_new_tokens
        context = request_context(exchange, request, id_prefix, "messages", default)
        with self._backend.admitted(), exchange.watched():
            self._check_tools(request)
            checked = await self._check(request, context, 1)
            prompt = await self._text.encode_chat(request, size=exchange.num_body_bytes)
            if checked.constraint is not None:
                checked.lowering.request.grammar = self._text.model.after_reasoning(
                    checked.constraint.grammar, prompt.turn
                )
            exchange.spans.mark("tokenize")
            await self._generate(exchange, checked, [prompt], make_format)

    async def _check(
        self, request: GenerationRequest, context: RequestContext, num_prompts: int
    ) -> _CheckedRequest:
        """Checks and lowers a request before its prompt is tokenised.

        Raises:
            ApiError: naming the first field that cannot be honoured.
        """
        config, model = self._backend.config, self._text.model
        self._backend.check_model(request.model)
        request.refuse_unsupported()
        engine = self._engine_for(request, context, num_prompts)
        constraint = output_constraint(request, model.tool_parser)
        lowering = Lowering(
            request,
            context,
            engine.info,
            model,
            self._text.defaults(config.generation_config),
            constraint,
            config.request_timeout_s,
        )
        if constraint is not None and config.check_grammar is not None:
            check = partial(check_constraint, constraint, config.check_grammar)
            await self._text.run_long(check)
        return _CheckedRequest(
            request=request,
            context=context,
            engine=engine,
            lowering=lowering,
            constraint=constraint,
        )

    def _engine_for(
        self, request: GenerationRequest, context: RequestContext, num_prompts: int
    ) -> EngineHandle:
        """Returns the engine, if it can queue all sequences of the request at once.

        Raises:
            ApiError: 400, naming `n` or the prompt; 503, if there is no engine.
        """
        num_sequences = num_prompts * request.n
        param = "n" if request.n > 1 else context.prompt_param
        most = self._backend.config.max_sequences
        if num_sequences > most:
            message = f"prompts times n are {num_sequences}; one request may have at most {most}"
            raise ApiError(400, message, param=param)
        engine = self._backend.engine()
        most = engine.info.limits.max_queued_requests
        if 1 < num_sequences > most:
            # All sequences of a request are submitted together. The engine would refuse them with
            # a 503, which clients retry in vain.
            message = (
                f"prompts times n are {num_sequences}; this server queues at most {most} "
                "(--max-num-queued-reqs)"
            )
            raise ApiError(400, message, param=param)
        return engine

    def _check_tools(self, request: ChatRequest) -> None:
        if request.offered_tools and self._text.model.tool_parser is None:
            message = (
                "tools: this server has no tool parser for its model; "
                "its operator can name one with --tool-call-parser"
            )
            raise ApiError(400, message, param="tools")

    async def _echoes(self, request: CompletionRequest) -> list[str]:
        return [
            prompt if isinstance(prompt, str) else await self._text.decode(prompt)
            for prompt in request.prompts
        ]

    async def _generate(
        self,
        exchange: HttpExchange,
        checked: _CheckedRequest,
        prompts: Sequence[Prompt],
        make_format: MakeFormat,
        echoes: Sequence[str] = (),
    ) -> None:
        """Submits the sequences of a request, and writes its response."""
        request, backend = checked.request, self._backend
        generation = self._generation(checked, prompts)
        with backend.registered(checked.context.response_id, generation), generation:
            exchange.spans.mark("submit")
            backend.polling.touch()
            # The engine works from here on. What only the response needs is made meanwhile.
            parsers = self._parsers(request, prompts[0])
            generation.set_outputs(self._outputs(checked, prompts, parsers))
            options = self._options(exchange, checked, echoes, is_parsed=bool(parsers))
            wire_format = make_format(options, generation.requests, request.n)
            num_scored = _num_scored_prompt_tokens(options, prompts)
            await self._write(exchange, request, generation, wire_format, num_scored)
        if isinstance(request, ChatRequest) and request.offered_tools and generation.is_whole:
            # A response that was cut off is not counted, because a tool call might have followed.
            for parser in parsers:
                backend.metrics.count_tool_parse(
                    exchange.route_path, is_stream=request.stream, has_call=parser.has_call
                )

    def _generation(self, checked: _CheckedRequest, prompts: Sequence[Prompt]) -> Generation:
        request, backend = checked.request, self._backend
        requests = _engine_requests(checked, prompts)
        _check_num_tokens(requests, checked)
        return Generation(
            checked.engine,
            requests,
            num_samples=request.n,
            prompt_param=checked.context.prompt_param,
            grammar_param=None if checked.constraint is None else checked.constraint.exact_param,
            limit_s=checked.lowering.request.limit_s,
            is_prompt_only=request.wanted_max_tokens == 0,
            resubmit=backend.resubmit if backend.config.resume_timeout_s else None,
            metrics=backend.metrics,
        )

    async def _write(
        self,
        exchange: HttpExchange,
        request: GenerationRequest,
        generation: Generation,
        wire_format: WireFormat,
        num_scored: int,
    ) -> None:
        """Writes the response; `num_scored` prompt tokens in it have logprobs."""
        writer = ResponseWriter(
            exchange,
            generation,
            wire_format,
            self._text.run_long,
            has_long_openings=num_scored > _MAX_INLINE_SCORES,
        )
        if request.stream:
            failure = await writer.write_stream()
            if failure is not None and failure.refusal is not None:
                self._backend.metrics.count_refusal(failure.refusal)
            return

        def is_long() -> bool:
            is_scored = request.num_top_logprobs is not None
            num_scores = generation.usage().num_output_tokens if is_scored else 0
            return num_scored + num_scores > _MAX_INLINE_SCORES

        await writer.write_whole(is_long)

    def _parsers(self, request: GenerationRequest, prompt: Prompt) -> list[OutputParser]:
        """Returns a parser of reasoning and tool calls for each choice, or none at all."""
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

    def _options(
        self,
        exchange: HttpExchange,
        checked: _CheckedRequest,
        echoes: Sequence[str],
        *,
        is_parsed: bool,
    ) -> FormatOptions:
        request, config = checked.request, self._backend.config
        stream_options = request.stream_options or StreamOptions()
        return FormatOptions(
            response_id=checked.context.response_id,
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
            is_parsed=is_parsed,
        )

    def _outputs(
        self, checked: _CheckedRequest, prompts: Sequence[Prompt], parsers: Sequence[OutputParser]
    ) -> list[OutputStream]:
        """Returns the output stream of every sample of every prompt."""
        request = checked.request
        is_located = isinstance(request, CompletionRequest) and request.logprobs is not None
        of_samples: Sequence[OutputParser | None] = parsers or [None] * request.n
        return [
            checked.lowering.request.output_stream(
                self._text.model, prompt.token_ids, parser, is_located=is_located
            )
            for prompt in prompts
            for parser in of_samples
        ]


def chat_format(
    options: FormatOptions, requests: Sequence[GenerateRequest], num_samples: int
) -> WireFormat:
    """Makes the wire format of chat completions, with parsers or without."""
    make = ParsedChatFormat if options.is_parsed else ChatFormat
    return make(options, requests, num_samples)


def _engine_requests(checked: _CheckedRequest, prompts: Sequence[Prompt]) -> list[GenerateRequest]:
    """Returns one request for every sample of every prompt."""
    request, response_id = checked.request, checked.context.response_id
    is_single = len(prompts) * request.n == 1
    return [
        checked.lowering.build(
            prompt,
            sample,
            response_id if is_single else f"{response_id}-{number * request.n + sample}",
        )
        for number, prompt in enumerate(prompts)
        for sample in range(request.n)
    ]


def _check_num_tokens(requests: Sequence[GenerateRequest], checked: _CheckedRequest) -> None:
    """Refuses prompts that do not fit even an empty queue. Clients would retry a 503 in vain."""
    most = checked.engine.info.limits.max_queued_tokens
    num_tokens = sum(request.num_prompt_tokens for request in requests)
    if len(requests) > 1 and num_tokens > most:
        message = (
            f"prompts times n have {num_tokens} tokens; this server queues at most {most} "
            "(--max-num-queued-tokens)"
        )
        raise ApiError(400, message, param=checked.context.prompt_param)


def _num_scored_prompt_tokens(options: FormatOptions, prompts: Sequence[Prompt]) -> int:
    """Returns how many prompt tokens have logprobs in the response."""
    is_scored = options.num_top_echoed is not None or options.num_top_prompt is not None
    return sum(num_ids(p.token_ids) for p in prompts) if is_scored else 0
