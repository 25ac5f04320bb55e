"""A tiny checkpoint, an engine loop over its executor, and requests through it."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from openinfer_contract import (
    GenerateRequest,
    LogprobOptions,
    PromptLogprobOptions,
    Sampling,
    StopRules,
    TokenEvent,
    pack_ids,
    unpack_ids,
)
from openinfer_engine import EngineLoop, EngineOptions, LaunchSpec, assemble
from openinfer_qwen3 import LINE
from openinfer_runtime import TorchExecutor, _executor
from openinfer_runtime.steps._prefix_groups import SharingThresholds
from openinfer_testing.torch import TINY_CHECKPOINTS

VOCAB_SIZE = 320
BLOCK_BYTES = 16 * 3 * 2 * 2 * 64 * 4  # of gqa2-d64-untied in float32


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _kernels_when_launched():
    """Leaves out compile-ahead: listing an engine's kernels would take longer than its test.

    `test_compilations` starts an engine with it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "openinfer_runtime.startup._launch._compiling_ahead", lambda *_: nullcontext()
        )
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory) -> Callable[[str], Path]:
    """The folder of a tiny checkpoint by name, written once."""
    root = tmp_path_factory.mktemp("tiny")
    shapes = {shape.name: shape for shape in TINY_CHECKPOINTS}

    def write(name: str = "gqa2-d64-untied") -> Path:
        folder = root / name
        return folder if folder.exists() else shapes[name].write(folder)

    return write


@dataclass
class Output:
    """All events of one request, merged."""

    event: TokenEvent

    @property
    def token_ids(self) -> list[int]:
        return unpack_ids(self.event.token_ids)

    @property
    def by_id(self) -> np.ndarray:
        """[num_tokens, vocab_size]: logprobs of all ids at every output position."""
        column = np.frombuffer(self.event.logprobs.by_id, "<f4")
        return column.reshape(len(self.token_ids), -1)


class Engine:
    """An engine loop in the test's own thread."""

    def __init__(self, folder: Path, **options) -> None:
        options = {"device": "cpu", "num_threads": 1, "max_num_seqs": 8, "seed": 1} | options
        self.options = EngineOptions(**options)
        self.spec = LaunchSpec(model_path=str(folder), model_line="qwen3", engine=self.options)
        executor = LINE.launch(self.spec)
        assert isinstance(executor, TorchExecutor)
        self.executor = executor
        with torch.inference_mode():
            for layer in range(executor._cache.spec.num_layers):
                for plane in executor._cache.layer(layer):
                    plane.fill_(torch.nan)  # reading an entry before it is written shows
        self.loop: EngineLoop = assemble(executor, self.options, model_line="qwen3")

    def pad_steps(self, tokenizer: Path | None = None) -> "Engine":
        """Takes the path of captured steps from now on; every replay runs all operations."""
        old = self.executor
        self.executor = TorchExecutor(old._model, old._cache, old.info, lambda work: work)
        self.loop = assemble(self.executor, self.options, model_line="qwen3", tokenizer=tokenizer)
        return self

    def run(self, requests: Sequence[GenerateRequest]) -> list[Output]:
        """Submits all requests at once and steps until every one has ended."""
        events: dict[str, list[TokenEvent]] = {r.request_id: [] for r in requests}
        for request in requests:
            self.loop.submit(request, events[request.request_id].append)
        while self.loop.has_work:
            self.loop.step()
        assert self.loop.load().is_idle
        outputs = []
        for stream in events.values():
            merged = stream[0]
            for event in stream[1:]:
                merged = merged.merged(event)
            outputs.append(Output(merged))
        return outputs


@pytest.fixture(scope="session")
def engine(checkpoint) -> Callable[..., Engine]:
    """An engine over a tiny checkpoint: `engine(name, **engine_options)`."""

    def start(name: str = "gqa2-d64-untied", **options) -> Engine:
        return Engine(checkpoint(name), **options)

    return start


@pytest.fixture(scope="session")
def engine_class() -> type[Engine]:
    """`Engine`, for tests with a checkpoint of their own."""
    return Engine


@pytest.fixture
def eager_to_share(monkeypatch) -> None:
    """Makes executors read shared prefixes of one block once, whether that is faster or not."""
    thresholds = SharingThresholds(min_rows=2, min_tokens=16, min_saved_tokens=0)
    monkeypatch.setattr(_executor, "SharingThresholds", lambda: thresholds)


@pytest.fixture(scope="session")
def block_bytes() -> int:
    """Bytes of a cache block of the default checkpoint in float32."""
    return BLOCK_BYTES


ALL_IDS = LogprobOptions(token_ids=pack_ids(range(VOCAB_SIZE)))


@pytest.fixture(scope="session")
def ask() -> Callable[..., GenerateRequest]:
    """A request: `ask(prompt, max_tokens=..., **sampling)`; greedy unless told otherwise."""
    count = iter(range(1_000_000))

    def request(
        prompt,
        *,
        max_tokens=1,
        min_tokens=0,
        wants_all=False,
        logprobs: LogprobOptions | None = None,
        prompt_logprobs: PromptLogprobOptions | None = None,
        **sampling,
    ) -> GenerateRequest:
        return GenerateRequest(
            request_id=f"r{next(count)}",
            prompt_token_ids=pack_ids(prompt),
            stop=StopRules(max_tokens=max_tokens, min_tokens=min_tokens, ignore_eos=True),
            sampling=Sampling(**({"temperature": 0.0} | sampling)),
            logprobs=ALL_IDS if wants_all else logprobs,
            prompt_logprobs=prompt_logprobs,
        )

    return request


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Sequences on both sides of block boundaries."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(VOCAB_SIZE, (n,), generator=generator).tolist() for n in (33, 2, 16, 50)]
