"""Models for the application's tests: the built-in one, and one that only counts."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openinfer import LLM
from openinfer.launch._resolve import resolve_model
from openinfer_contract import CommandDone, GetLoad
from openinfer_testing import CountingShape, ModelledExecutor, ModelledOptions

NUM_TINY_IDS = 2048


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def _tiny_llm() -> Iterator[LLM]:
    with LLM(max_num_seqs=8) as llm:
        yield llm


@pytest.fixture
def tiny_llm(_tiny_llm: LLM) -> Iterator[LLM]:
    """The built-in model, idle after every test."""
    yield _tiny_llm
    assert_idle(_tiny_llm)


def assert_idle(llm: LLM) -> None:
    """Asserts that no request runs or waits and no block is held, within 10 s."""
    deadline = time.monotonic() + 10
    while True:
        done = llm.engine.control(GetLoad()).result(10)
        assert isinstance(done, CommandDone)
        assert done.load is not None
        if done.load.is_idle:
            return
        assert time.monotonic() < deadline, done.load
        time.sleep(0.005)


@pytest.fixture
def counting_llm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LLM]]:
    """Makes LLMs with tiny's tokenizer over a model whose token after t is t + 1.

    After the test it asserts that they are idle, and closes them.
    """
    made: list[LLM] = []

    def make(*, step_s: float = 0.0, options: dict[str, Any] | None = None, **shape: Any) -> LLM:
        sizes = {"vocab_size": NUM_TINY_IDS, "max_num_seqs": 4} | shape
        modelled = ModelledOptions(shape=CountingShape(**sizes), step_s=step_s)
        monkeypatch.setattr(
            "openinfer.llm._llm.launch_line", lambda spec: ModelledExecutor(modelled)
        )
        made.append(LLM(**(options or {})))
        return made[-1]

    yield make
    for llm in made:
        try:
            assert_idle(llm)
        finally:
            llm.close()


@pytest.fixture
def tiny_with(tmp_path: Path) -> Callable[..., Path]:
    """Makes a folder of the built-in model with another generation_config.json."""

    def make(**generation: Any) -> Path:
        folder = tmp_path / "tiny"
        shutil.copytree(resolve_model(None).path, folder)
        (folder / "generation_config.json").write_text(json.dumps(generation))
        return folder

    return make
