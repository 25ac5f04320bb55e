"""What needs the tokenizer alone: ids of texts and chats, and back."""

from openinfer_contract import num_ids, unpack_ids
from openinfer_frontend._backend import Backend
from openinfer_frontend._chat_request import ChatRequest
from openinfer_frontend._exchange import Exchange, translated
from openinfer_frontend._messages_request import CountTokensRequest
from openinfer_frontend._token_requests import DetokenizeRequest, TokenizeRequest
from openinfer_frontend.errors import ApiError


class TokenRoutes:
    """The routes that turn text into ids and back, without the engine."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._text = backend.text

    async def tokenize(self, exchange: Exchange) -> None:
        """POST /tokenize."""
        request = await exchange.read_model(TokenizeRequest)
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
        token_ids = unpack_ids(prompt.token_ids)
        name = self._text.model.tokenizer.token_text
        await exchange.respond_json(
            {
                "count": len(token_ids),
                "max_model_len": info.limits.max_model_len,
                "tokens": token_ids,
                "token_strs": [name(i) for i in token_ids] if request.return_token_strs else None,
            }
        )

    async def count_tokens(self, exchange: Exchange) -> None:
        """POST /v1/messages/count_tokens."""
        body = await exchange.read_model(CountTokensRequest)
        self._backend.check_model(body.model)
        body.refuse_unsupported()
        with translated(CountTokensRequest.PARAMS):
            request = self._text.placed(body.conversation())
            prompt = await self._text.encode_chat(request, size=exchange.num_body_bytes)
        await exchange.respond_json({"input_tokens": num_ids(prompt.token_ids)})

    async def render_chat(self, exchange: Exchange) -> None:
        """POST /v1/chat/completions/render."""
        request = await exchange.read_model(ChatRequest)
        self._backend.check_model(request.model)
        request.refuse_unsupported()
        prompt = await self._text.encode_chat(request, size=exchange.num_body_bytes)
        await exchange.respond_json(
            {
                "prompt": prompt.text,
                "token_ids": unpack_ids(prompt.token_ids),
                "boundaries": unpack_ids(prompt.boundaries),
            }
        )

    async def detokenize(self, exchange: Exchange) -> None:
        """POST /detokenize."""
        request = await exchange.read_model(DetokenizeRequest)
        self._backend.check_model(request.model)
        size = self._backend.engine().info.vocab_size
        if any(not 0 <= token_id < size for token_id in request.tokens):
            raise ApiError(400, f"tokens: ids must be below {size}", param="tokens")
        await exchange.respond_json({"prompt": await self._text.decode(request.tokens)})
