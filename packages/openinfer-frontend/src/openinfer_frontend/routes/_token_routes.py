"""The routes that need the tokenizer alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from openinfer_contract import num_ids, unpack_ids
from openinfer_frontend._backend import Backend
from openinfer_frontend.http._http_exchange import HttpExchange
from openinfer_frontend.protocols._json import to_json, to_json_in_slices
from openinfer_frontend.protocols._validation_errors import renaming_errors
from openinfer_frontend.protocols.anthropic._messages_request import CountTokensRequest
from openinfer_frontend.protocols.openai._chat_request import ChatRequest
from openinfer_frontend.protocols.openai._token_requests import DetokenizeRequest, TokenizeRequest


class TokenRoutes:
    """The routes that turn text into ids and back, without the engine."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._text = backend.text

    async def tokenize(self, exchange: HttpExchange) -> None:
        """POST /tokenize."""
        request = await exchange.read_model(TokenizeRequest)
        with self._admitted(exchange):
            self._backend.check_model(request.model)
            request.refuse_unsupported()
            info = self._backend.engine().info
            if request.prompt is not None:
                (prompt,) = await self._text.encode_prompts(
                    [request.prompt],
                    add_special_tokens=request.add_special_tokens is not False,
                    vocab_size=info.vocab_size,
                    size=exchange.num_body_bytes,
                )
            else:
                prompt = await self._text.encode_chat(request, size=exchange.num_body_bytes)
            name = self._text.model.tokenizer.token_text

            def content() -> dict[str, object]:
                ids = unpack_ids(prompt.token_ids)
                return {
                    "count": len(ids),
                    "max_model_len": info.limits.max_model_len,
                    "tokens": ids,
                    "token_strs": [name(i) for i in ids] if request.return_token_strs else None,
                }

            await self._respond(exchange, content, len(prompt.token_ids))

    async def count_tokens(self, exchange: HttpExchange) -> None:
        """POST /v1/messages/count_tokens."""
        body = await exchange.read_model(CountTokensRequest)
        with self._admitted(exchange):
            self._backend.check_model(body.model)
            body.refuse_unsupported()
            request = self._text.fold_late_system_messages(body.conversation())
            with renaming_errors(body.field_names()):
                prompt = await self._text.encode_chat(request, size=exchange.num_body_bytes)
            await exchange.respond_json({"input_tokens": num_ids(prompt.token_ids)})

    async def render_chat(self, exchange: HttpExchange) -> None:
        """POST /v1/chat/completions/render."""
        request = await exchange.read_model(ChatRequest)
        with self._admitted(exchange):
            self._backend.check_model(request.model)
            request.refuse_unsupported()
            prompt = await self._text.encode_chat(request, size=exchange.num_body_bytes)

            def content() -> dict[str, object]:
                return {
                    "prompt": prompt.text,
                    "token_ids": unpack_ids(prompt.token_ids),
                    "boundaries": unpack_ids(prompt.boundaries),
                }

            await self._respond(exchange, content, len(prompt.token_ids) + len(prompt.text))

    async def detokenize(self, exchange: HttpExchange) -> None:
        """POST /detokenize."""
        request = await exchange.read_model(DetokenizeRequest)
        with self._admitted(exchange):
            self._backend.check_model(request.model)
            size = self._backend.engine().info.vocab_size
            # A model may have fewer ids than the client's tokenizer; unknown ids have no text.
            known = [token_id for token_id in request.tokens if token_id < size]
            text = await self._text.decode(known)
            await self._respond(exchange, lambda: {"prompt": text}, len(text))

    @contextmanager
    def _admitted(self, exchange: HttpExchange) -> Iterator[None]:
        """Applies the limits of generating requests: this work takes threads and memory too."""
        with self._backend.admitted(), exchange.watched():
            yield

    async def _respond(
        self, exchange: HttpExchange, content: Callable[[], dict[str, object]], size: int
    ) -> None:
        """Sends a JSON response; long ones are encoded in a text thread."""
        if size <= self._backend.config.max_inline_bytes:
            body = to_json(content())
        else:
            body = await self._text.run_long(lambda: to_json_in_slices(content()))
        await exchange.respond(200, body)
