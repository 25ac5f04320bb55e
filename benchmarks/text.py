"""Time of a conversation from the bytes of its request to token ids.

    python benchmarks/text.py FOLDER                (--record [FOLDER] writes a result)

FOLDER holds the tokenizer.json of a model; a vocabulary of 151k is what the figures are about. A
conversation of 16k tokens, tools and results in it, grows turn by turn, as an agent sends it: every
request carries all of the turns before. In the process, on one thread, as the front end does it:
the body is validated, rendered by the template, encoded. The goal is 2 ms at the median for a
conversation that is sent again.
"""

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import tokenizers
from _others import OthersMeter

from openinfer_contract import num_ids, unpack_ids
from openinfer_frontend.protocols.openai._chat_request import ChatRequest
from openinfer_testing import results
from openinfer_text import TextModel

GOAL_MS = 2.0
NUM_TOKENS = 16_384
NUM_TURNS = 20
REPEATS = 50
_TEMPLATE = Path(__file__).parents[1] / "packages/openinfer-text/tests/templates/chatml.jinja"
_FIND_OUT = """
import sys
from pathlib import Path
from openinfer_text import Tokenizer
tokenizer = Tokenizer.from_folder(
    sys.argv[1], is_accelerated=True, verdict_folder=Path(sys.argv[2])
)
tokenizer.acceleration.wait()
"""
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"tool_{index}",
            "description": "Does one thing, and says what came of it. " * 4,
            "parameters": {
                "type": "object",
                "properties": {
                    name: {"type": "string", "description": f"The {name} of what it does."}
                    for name in ("path", "text", "mode")
                },
                "required": ["path"],
            },
        },
    }
    for index in range(12)
]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="holds a tokenizer.json")
    results.add_record_flag(parser)
    parser.add_argument("--rss", choices=("tokenizers", "fastokens"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rss is not None:
        print(_rss_after_load(arguments.folder, arguments.rss == "fastokens"))
        return
    meter = OthersMeter()
    report = _measure(arguments.folder)
    report["others_busy_percent"] = meter.percent()
    print(json.dumps(report, indent=2))
    if arguments.record:
        results.write(arguments.record, report)


def _measure(folder: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as verdicts:
        plain, _ = _loaded(folder, None)
        model, found_s = _loaded(folder, Path(verdicts))
        again, known_s = _loaded(folder, Path(verdicts))
    messages = _conversation(plain)
    ids = _encode(model, _body(messages))
    reference = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    rendered = model.chat_template.render(messages, tools=_TOOLS, add_generation_prompt=True)
    assert list(unpack_ids(ids)) == reference.encode(rendered, add_special_tokens=False).ids
    assert ids == _encode(plain, _body(messages)), "both backends give the same ids"
    sent_again = _sent_again(model, messages)
    return {
        **results.header("text"),
        "vocab_size": model.tokenizer.vocab_size,
        "num_tokens": num_ids(ids),
        "num_messages": len(messages),
        "num_body_bytes": len(_body(messages)),
        "verdict": model.tokenizer.acceleration.verdict,
        "verdict_s": {"found": found_s, "known": known_s},
        "rss_mb": {backend: _rss_mb(folder, backend) for backend in ("tokenizers", "fastokens")},
        "goal_ms": GOAL_MS,
        "is_goal_met": sent_again["all"]["median"] <= GOAL_MS,
        "sent_again_ms": sent_again,
        "one_turn_longer_ms": {
            "fastokens": _one_turn_longer(again, messages, _Texts(seed=2)),
            "tokenizers": _one_turn_longer(plain, messages, _Texts(seed=3)),
        },
        "encode_new_text_ms": {
            "fastokens": _new_text(model, num_ids(ids), _Texts(seed=4)),
            "tokenizers": _new_text(plain, num_ids(ids), _Texts(seed=5)),
        },
    }


def _loaded(folder: Path, verdicts: Path | None) -> tuple[TextModel, float]:
    model = TextModel.from_folder(
        folder,
        chat_template=_TEMPLATE.read_text(),
        is_accelerated=verdicts is not None,
        verdict_folder=verdicts,
    )
    begun = time.perf_counter()
    if verdicts is not None:
        assert model.tokenizer.acceleration.wait() == "agrees"
    return model, round(time.perf_counter() - begun, 2)


class _Texts:
    """Sources of the standard library, cut in pieces that never come twice."""

    def __init__(self, seed: int) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        random.Random(seed).shuffle(files)
        self._text = "".join(file.read_text(encoding="utf-8") for file in files)
        self._at = itertools.count()

    def take(self, num_chars: int) -> str:
        begin = next(self._at) * 20_000 % (len(self._text) - num_chars)
        return self._text[begin : begin + num_chars]


def _turn(texts: _Texts, size: int, index: int) -> list[dict[str, Any]]:
    call = {"name": "tool_1", "arguments": json.dumps({"text": texts.take(size // 8)})}
    return [
        {"role": "user", "content": texts.take(size // 8)},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": f"call_{index}", "type": "function", "function": call}],
        },
        {"role": "tool", "content": texts.take(size // 2), "tool_call_id": f"call_{index}"},
        {"role": "assistant", "content": texts.take(size // 4)},
    ]


def _conversation(model: TextModel) -> list[dict[str, Any]]:
    """`NUM_TOKENS` tokens in `NUM_TURNS` turns, tools included, give or take a hundredth."""
    empty = num_ids(_encode(model, _body(_messages(0))))
    size = 1000
    for _ in range(4):
        found = num_ids(_encode(model, _body(_messages(size))))
        size = round(size * (NUM_TOKENS - empty) / (found - empty))
    return _messages(size)


def _messages(size: int) -> list[dict[str, Any]]:
    texts = _Texts(seed=1)
    turns = [_turn(texts, size, index) for index in range(NUM_TURNS)]
    system = {"role": "system", "content": "You are careful."}
    return [system, *itertools.chain(*turns), {"role": "user", "content": "Go on."}]


def _body(messages: list[dict[str, Any]]) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "tools": _TOOLS}).encode()


def _encode(model: TextModel, body: bytes) -> bytes:
    request = ChatRequest.model_validate_json(body)
    return model.encode_chat(request.messages or (), tools=request.offered_tools).token_ids


def _sent_again(model: TextModel, messages: list[dict[str, Any]]) -> dict[str, Any]:
    body = _body(messages)
    request = ChatRequest.model_validate_json(body)
    chat, tools = request.messages or (), request.offered_tools
    text = model.encode_chat(chat, tools=tools).text
    render = model.chat_template.render
    return {
        "all": _times(lambda: _encode(model, body)),
        "validate": _times(lambda: ChatRequest.model_validate_json(body)),
        "render": _times(lambda: render(chat, tools=tools, add_generation_prompt=True)),
        "encode": _times(lambda: model.encode(text, add_special_tokens=False)),
    }


def _one_turn_longer(
    model: TextModel, messages: list[dict[str, Any]], texts: _Texts
) -> dict[str, float]:
    """Everything but the last turn was there before; the turn is 750 tokens of new text."""
    _encode(model, _body(messages))
    size = 750 * 20_000 // num_ids(model.encode(texts.take(20_000)))
    bodies = iter([_body([*messages, *_turn(texts, size, 99 + i)]) for i in range(REPEATS)])
    return _times(lambda: _encode(model, next(bodies)))


def _new_text(model: TextModel, num_tokens: int, texts: _Texts) -> dict[str, float]:
    sample = texts.take(20_000)
    size = num_tokens * 20_000 // num_ids(model.encode(sample))
    new = iter([texts.take(size) for _ in range(REPEATS)])
    return _times(lambda: model.encode(next(new), add_special_tokens=False))


def _times(work: Callable[[], object]) -> dict[str, float]:
    """Returns milliseconds of wall time, and of CPU time, which other load affects less."""
    taken, cycles = [], []
    for _ in range(REPEATS):
        begun, begun_cpu = time.perf_counter(), time.thread_time()
        work()
        cycles.append(1e3 * (time.thread_time() - begun_cpu))
        taken.append(1e3 * (time.perf_counter() - begun))
    taken.sort()
    return {
        "median": round(statistics.median(taken), 3),
        "p90": round(taken[len(taken) * 9 // 10], 3),
        "median_of_thread": round(statistics.median(cycles), 3),
    }


def _rss_mb(folder: Path, backend: str) -> int:
    """Returns the memory of a process that has loaded only the text side of a model."""
    command = [sys.executable, __file__, str(folder), "--rss", backend]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _rss_after_load(folder: Path, is_accelerated: bool) -> int:
    with tempfile.TemporaryDirectory() as verdicts:
        if is_accelerated:
            # The first load finds the verdict out, which takes memory of its own.
            command = [sys.executable, "-c", _FIND_OUT, str(folder), verdicts]
            subprocess.run(command, check=True)
        model, _ = _loaded(folder, Path(verdicts) if is_accelerated else None)
        model.encode("So much for that.")
        return round(psutil.Process().memory_info().rss / 1e6)


if __name__ == "__main__":
    main()
