"""A tiny byte-level checkpoint, and an engine that is driven by the test."""

import asyncio
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from openinfer_contract import (
    FEATURES,
    Command,
    CommandDone,
    CommandResult,
    EngineDead,
    EngineInfo,
    EventSink,
    Finished,
    GenerateRequest,
    GetLoad,
    Limits,
    Load,
    PromptLogprobs,
    Scheduled,
    StreamState,
    Ticket,
    TokenEvent,
    TokenLogprobs,
    check_request,
    pack_floats,
    pack_ids,
    unpack_ids,
)
from openinfer_frontend import (
    FixedEngine,
    FrontendApp,
    FrontendConfig,
    bind,
    create_app,
    new_event_loop,
    serve,
)
from openinfer_text import TextModel

IM_START, IM_END, END_OF_TEXT = 256, 257, 258
MARKERS = {"<tool_call>": 259, "</tool_call>": 260, "<think>": 261, "</think>": 262}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL_TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}"
    '<tool_call>{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if thinks %}<think>\n{% else %}{# closed by </think> #}{% endif %}{% endif %}"
)


def _write_checkpoint(folder: Path) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    spelling = {byte: chr(byte) for byte in printable}
    spelling |= {byte: chr(256 + index) for index, byte in enumerate(rest)}
    assert sorted(spelling.values()) == alphabet
    tokenizer = Tokenizer(models.BPE({spelling[byte]: byte for byte in range(256)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    tokenizer.add_special_tokens(list(MARKERS))
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 512}))
    generation = {"eos_token_id": [IM_END, END_OF_TEXT], "temperature": 0.6, "top_k": 20}
    (folder / "generation_config.json").write_text(json.dumps(generation))


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes a checkpoint in which every byte is the token of its value; special tokens and markers
    follow."""
    folder = tmp_path_factory.mktemp("checkpoint")
    _write_checkpoint(folder)
    return folder


@pytest.fixture(scope="session")
def text(checkpoint: Path) -> Iterator[TextModel]:
    """A text model without tools and reasoning."""
    model = TextModel.from_folder(checkpoint)
    yield model
    model.close()


@pytest.fixture(scope="session")
def tool_text(checkpoint: Path) -> Iterator[TextModel]:
    """A text model with Hermes calls and reasoning; its markers are special tokens."""
    model = TextModel.from_folder(checkpoint, chat_template=TOOL_TEMPLATE)
    yield model
    model.close()


def logprobs_of(ids: list[int], num_top: int, num_by_id: int = 0) -> TokenLogprobs:
    """Returns logprobs: -0.5 for each token, -1, -2, ... for the alternatives 97, 98, ..., and -10,
    -11, ... for requested ids."""
    top_ids = [97 + k for _ in ids for k in range(num_top)]
    return TokenLogprobs(
        sampled=pack_floats([-0.5] * len(ids)),
        ranks=pack_ids([1] * len(ids)),
        num_top=num_top,
        top_ids=pack_ids(top_ids),
        top=pack_floats([-1.0 - k for _ in ids for k in range(num_top)]),
        by_id=pack_floats([-10.0 - k for _ in ids for k in range(num_by_id)]),
    )


class FakeEngine:
    """An EngineHandle driven by the test.

    With a `script`, every request gets the script's entries at once, one event each. Without one,
    the test emits events itself.
    """

    def __init__(
        self,
        honoured: Iterable[str] = FEATURES,
        commands: Iterable[str] = ("get_load", "reset_prefix_cache"),
        **limits: int,
    ) -> None:
        bounds = {
            "max_model_len": 512,
            "max_num_seqs": 8,
            "max_num_batched_tokens": 512,
            "max_queued_requests": 64,
            "max_queued_tokens": 65536,
            "max_logprobs": 20,
        } | limits
        self._info = EngineInfo(
            engine="fake",
            model_line="fake",
            model_fingerprint="0",
            dtype="float32",
            vocab_size=300,
            eos_token_ids=(IM_END,),
            limits=Limits(**bounds),
            cache_groups=(),
            hash_recipe="none",
            honoured=frozenset(honoured),
            commands=frozenset(commands),
        )
        self.script: Callable[[GenerateRequest], list[Any]] | None = None
        self.is_paced = False
        """Whether the script's entries are delivered one by one, so that none is merged with the
        next."""
        self.requests: list[GenerateRequest] = []
        self.aborted: list[str] = []
        self.commands: list[Command] = []
        self.results: list[CommandResult | None] = []
        self.dead: str | None = None
        self._live: dict[str, tuple[GenerateRequest, EventSink, StreamState]] = {}
        self._counts: dict[str, int] = {}

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def live(self) -> list[str]:
        return list(self._live)

    def submit(self, request: GenerateRequest, sink: EventSink, /) -> Ticket:
        if self.dead is not None:
            raise EngineDead(self.dead)
        self.requests.append(request)
        rejected = check_request(request, self._info)
        assert rejected is None, rejected
        assert request.request_id not in self._live
        self._live[request.request_id] = (request, sink, StreamState(request.request_id))
        self._counts[request.request_id] = 0
        if self.script is not None and self.is_paced:
            self._pace(iter(self.script(request)), request.request_id)
        elif self.script is not None:
            for entry in self.script(request):
                self.emit(entry, request.request_id)
                if isinstance(entry, TokenEvent) and entry.scheduled is not None:
                    for scores in self._prompt_scores(request):
                        self.emit(scores, request.request_id)
        return Ticket(self, request.request_id)

    def _pace(self, entries: Iterator[Any], request_id: str) -> None:
        for entry in entries:
            self.emit(entry, request_id)
            asyncio.get_running_loop().call_soon(self._pace, entries, request_id)
            return

    def _prompt_scores(self, request: GenerateRequest) -> Iterator[TokenEvent]:
        """Makes two chunks; the second begins at the prompt's third token."""
        if request.prompt_logprobs is not None:
            ids, num_top = unpack_ids(request.prompt_token_ids), request.prompt_logprobs.num_top
            for start, chunk in ((1, ids[1:2]), (2, ids[2:])):
                if chunk:
                    scores = PromptLogprobs(start=start, logprobs=logprobs_of(chunk, num_top))
                    yield TokenEvent(prompt_logprobs=scores)

    def emit(self, entry: Any, request_id: str | None = None) -> None:
        """Delivers text, ids, an end or a whole event to a request, by default to the only live
        one."""
        request_id = request_id or self.live[0]
        if request_id not in self._live:
            return
        request, sink, state = self._live[request_id]
        if isinstance(entry, str):
            entry = encode(entry)
        if isinstance(entry, list):
            wanted = request.logprobs
            entry = TokenEvent(
                token_ids=pack_ids(entry),
                logprobs=logprobs_of(entry, wanted.num_top, len(wanted.token_ids) // 4)
                if wanted
                else None,
            )
        elif not isinstance(entry, TokenEvent):
            entry = TokenEvent(end=entry)
        self._counts[request_id] += entry.num_tokens
        state.advance(entry)
        if entry.end is not None:
            del self._live[request_id]
        sink(entry)

    def abort(self, request_ids: Iterable[str], /) -> None:
        for request_id in list(request_ids):
            self.aborted.append(request_id)
            self.emit(Finished(reason="abort"), request_id)

    def control(self, command: Command, /) -> "Future[CommandResult]":
        self.commands.append(command)
        future: Future[CommandResult] = Future()
        load = self.load() if isinstance(command, GetLoad) else None
        result = self.results.pop(0) if self.results else CommandDone(load=load)
        if result is not None:
            future.set_result(result)
        return future

    def load(self) -> Load:
        return Load(num_running=len(self._live), num_total_blocks=4, num_free_blocks=4)

    def drain(self) -> "Future[None]":
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def encode(text: str) -> list[int]:
    """Returns the ids of a text; markers are special tokens."""
    if "<" not in text:
        return list(text.encode())
    parts = re.split("(" + "|".join(MARKERS) + ")", text)
    return [i for part in parts for i in ([MARKERS[part]] if part in MARKERS else part.encode())]


def scheduled(num_prompt_tokens: int, num_cached: int = 0) -> TokenEvent:
    cached = (("device", num_cached),) if num_cached else ()
    return TokenEvent(scheduled=Scheduled(num_prompt_tokens=num_prompt_tokens, cached=cached))


def hello(request: GenerateRequest) -> list[Any]:
    """`Hello` in three events, then EOS."""
    return [
        scheduled(request.num_prompt_tokens, 3),
        "He",
        "llo",
        [IM_END],
        Finished(reason="stop", stop_token_id=IM_END),
    ]


@pytest.fixture
def fakes() -> SimpleNamespace:
    """Returns the classes and functions from which tests build their engine and application."""
    return SimpleNamespace(
        FakeEngine=FakeEngine,
        scheduled=scheduled,
        hello=hello,
        encode=encode,
        IM_END=IM_END,
        END_OF_TEXT=END_OF_TEXT,
        wait_for=wait_for,
    )


async def wait_for(condition: Callable[[], object]) -> None:
    """Lets the loop run until `condition` holds."""
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.fixture
def engine() -> FakeEngine:
    fake = FakeEngine()
    fake.script = hello
    return fake


@pytest.fixture
def say(engine: FakeEngine) -> Callable[..., None]:
    """Makes the engine output a text, token by token."""

    def script(text: str, reason: str = "stop") -> None:
        engine.script = lambda request: [
            scheduled(request.num_prompt_tokens, 3),
            *([token_id] for token_id in encode(text)),
            *([[IM_END]] if reason == "stop" else []),
            Finished(reason=reason, stop_token_id=IM_END if reason == "stop" else None),
        ]

    return script


@pytest.fixture
def make_app(text: TextModel) -> Iterator[Callable[..., FrontendApp]]:
    apps = []

    def make(engine: Any, *, text: TextModel = text, **settings: Any) -> FrontendApp:
        config = FrontendConfig(
            **{"served_model_names": ("tiny", "other"), "version": "1.2"} | settings
        )
        app = create_app(FixedEngine(engine), text, config)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


@pytest.fixture
def app(engine: FakeEngine, make_app: Callable[..., FrontendApp]) -> FrontendApp:
    return make_app(engine)


class Client:
    """A blocking client; every call runs its own event loop."""

    def __init__(self, app: FrontendApp) -> None:
        self.app = app

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app)
            async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
                return await client.request(method, path, **arguments)

        return asyncio.run(send())

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def post(self, path: str, body: Any, **arguments: Any) -> httpx.Response:
        return self.request("POST", path, json=body, **arguments)

    def complete(self, prompt: Any = "Hi", **fields: Any) -> dict[str, Any]:
        return self._ok("/v1/completions", {"prompt": prompt} | fields)

    def chat(self, content: str = "Hi", **fields: Any) -> dict[str, Any]:
        messages = [{"role": "user", "content": content}]
        return self._ok("/v1/chat/completions", {"messages": messages} | fields)

    def stream(self, path: str, body: dict[str, Any]) -> list[Any]:
        """Returns the events of a stream, without its end mark, which is checked."""
        response = self.post(path, body | {"stream": True})
        assert response.status_code == 200, response.text
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = response.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        return [json.loads(event.removeprefix("data: ")) for event in events[:-2]]

    def _ok(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return response.json()


@pytest.fixture
def client(app: FrontendApp) -> Client:
    return Client(app)


@pytest.fixture
def client_of() -> type[Client]:
    return Client


class Running:
    """Runs `serve` in its own thread."""

    def __init__(self, app: FrontendApp, **options: Any) -> None:
        self.socket = bind("127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(app, options))
        self._thread.start()
        assert self._ready.wait(5)

    def _run(self, app: FrontendApp, options: dict[str, Any]) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            await serve(app, [self.socket], stop=self._stop, on_ready=self._ready.set, **options)

        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(main())

    def call(self, function: Callable[..., object], *arguments: Any) -> None:
        """Runs a function on the server's loop."""
        self._loop.call_soon_threadsafe(function, *arguments)

    def stop(self) -> None:
        self.call(self._stop.set)

    def join(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    servers: list[Running] = []

    def run(app: FrontendApp, **options: Any) -> Running:
        servers.append(Running(app, **options))
        return servers[-1]

    yield run
    for server in servers:
        if server._thread.is_alive():
            server.stop()
        server.join()


@pytest.fixture
def sdk(start: Callable[..., Running], app: FrontendApp) -> Iterator[openai.OpenAI]:
    client = openai.OpenAI(base_url=start(app).url + "/v1", api_key="none", max_retries=0)
    yield client
    client.close()
