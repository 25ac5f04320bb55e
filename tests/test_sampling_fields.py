"""One table of all fields that shape an output: their visible effect, and their refused values.

This table and the one of docs/guides/sampling.md name the same fields.
"""

import json
import re
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BASES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "Once upon a time"},
    CHAT: {"messages": [{"role": "user", "content": "Once upon a time"}]},
}
COMMON = {"model": "tiny", "return_token_ids": True, "max_tokens": 10}
GREEDY = {"temperature": 0, "ignore_eos": True}
HOT = {"temperature": 2.0, "seed": 7, "ignore_eos": True}
FEW = list(range(300, 340))
NO_NUMBERS = ("x", True, [], {})
NO_COUNTS = (*NO_NUMBERS, 1.5)
NO_FLAGS = ("x", 5, [])
NO_IDS = (5, ["x"], [1.5], [True], [-1], [99_999], [2**40])


@dataclass
class Choice:
    """Result of one choice, streamed or not."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    reason: str | None = None
    stop: Any = None
    names: list[str] = field(default_factory=list)
    """Names of the tokens with logprobs."""
    values: list[float] = field(default_factory=list)
    """Logprobs of the same tokens."""
    tops: list[set[str]] = field(default_factory=list)

    def add(self, choice: dict[str, Any]) -> None:
        self.ids += choice.get("token_ids") or []
        message = choice.get("message") or choice.get("delta") or choice
        self.text += message.get("content") or message.get("text") or ""
        self.reason = choice["finish_reason"] or self.reason
        self.stop = choice.get("stop_reason") or self.stop
        logprobs = choice.get("logprobs") or {}
        for entry in logprobs.get("content") or ():
            self.names.append(entry["token"])
            self.values.append(entry["logprob"])
            self.tops.append({top["token"] for top in entry["top_logprobs"]})
        for name, value, top in zip(
            logprobs.get("tokens") or (),
            logprobs.get("token_logprobs") or (),
            logprobs.get("top_logprobs") or (),
            strict=True,
        ):
            self.names.append(name)
            self.values.append(value)
            self.tops.append({*(top or ())})


Seen = Callable[[list[Choice], list[Choice]], bool]


@dataclass(frozen=True)
class Row:
    """One row of the guide: a field, or several.

    Attributes:
        beside: fields of both requests, with and without the effect.
        fields: further fields, which cause the effect.
        seen: returns whether the choices with the fields differ as expected from those without.
        good: accepted values at the bounds.
        bad: values that give a 400 with the field's name.
        paths: routes that accept the field.
        is_streamed: whether a stream may use the field.
    """

    fields: dict[str, Any]
    seen: Seen
    beside: dict[str, Any] = field(default_factory=dict)
    good: tuple[Any, ...] = ()
    bad: tuple[Any, ...] = ()
    paths: tuple[str, ...] = (COMPLETIONS, CHAT)
    is_streamed: bool = True


def ids_differ(now: list[Choice], before: list[Choice]) -> bool:
    return now[0].ids != before[0].ids


def ids_agree(now: list[Choice], before: list[Choice]) -> bool:
    return now[0].ids == before[0].ids


def spreads(now: list[Choice], before: list[Choice]) -> bool:
    return len({*now[0].ids}) > len({*before[0].ids})


ROWS = {
    "temperature": Row(
        {"temperature": 0}, ids_differ, HOT, (0, 100, None), (-0.1, 101, *NO_NUMBERS)
    ),
    "top_k": Row({"top_k": 1}, ids_differ, HOT, (-1, 0, 2**31), (-2, 10**30, *NO_COUNTS)),
    "top_p": Row({"top_p": 1e-6}, ids_differ, HOT, (1, None), (0, -0.1, 1.1, *NO_NUMBERS)),
    "min_p": Row({"min_p": 1.0}, ids_differ, HOT, (0, 1), (-0.1, 1.1, *NO_NUMBERS)),
    "repetition_penalty": Row(
        {"repetition_penalty": 3.0},
        spreads,
        GREEDY | {"allowed_token_ids": FEW, "max_tokens": 24},
        (0.01, 100),
        (0, -1, 1e-40, 0.0099, 101, *NO_NUMBERS),
    ),
    "presence_penalty": Row(
        {"presence_penalty": 2.0},
        spreads,
        GREEDY | {"allowed_token_ids": FEW},
        (-2, 2),
        (-2.1, 2.1, *NO_NUMBERS),
    ),
    "frequency_penalty": Row(
        {"frequency_penalty": 2.0},
        spreads,
        GREEDY | {"allowed_token_ids": FEW},
        (-2, 2),
        (-2.1, 2.1, *NO_NUMBERS),
    ),
    "logit_bias": Row(
        {"logit_bias": {"302": 100}},
        lambda now, _: {*now[0].ids} == {302},
        HOT,
        ({}, {"0": -100}, None),
        ({"5": 101}, {"99999": 1}, {"-1": 1}, {"x": 1}, {"5": "x"}, {"5": None}, [5], 5),
    ),
    "allowed_token_ids": Row(
        {"allowed_token_ids": FEW},
        lambda now, _: {*now[0].ids} <= {*FEW},
        HOT,
        ([0], None),
        ([], *NO_IDS),
    ),
    "bad_words": Row(
        {"bad_words": ["a", "e", "the", "and"]},
        lambda now, before: (
            ids_differ(now, before) and not {"a", "the", "and"} & {*now[0].text.split()}
        ),
        GREEDY,
        ([], None, ["x"]),
        ("x", [1], [""], [None], ["x " * 60], ["a"] * 129, ["x" * 129]),
    ),
    "min_tokens": Row(
        {"min_tokens": 4, "stop_token_ids": [302]},
        lambda now, _: len(now[0].ids) == 5 and now[0].ids[-1] == 302,
        HOT | {"logit_bias": {"302": 100}},
        (0, 10, None),
        (-1, 11, 10**30, *NO_COUNTS),
    ),
    "ignore_eos": Row(
        {"ignore_eos": True},
        lambda now, before: before[0].reason == "stop" and now[0].reason == "length",
        {"temperature": 0, "logit_bias": "EOS"},
        (None,),
        NO_FLAGS,
    ),
    "stop_token_ids": Row(
        {"stop_token_ids": [302]},
        lambda now, before: (
            (now[0].ids, now[0].reason, now[0].stop) == ([302], "stop", 302)
            and len(before[0].ids) == 10
        ),
        HOT | {"logit_bias": {"302": 100}},
        ([], None, list(range(64))),
        (*NO_IDS, list(range(65))),
    ),
    "stop": Row(
        {"stop": ["never seen", "e"]},
        lambda now, before: (
            now[0].text == before[0].text.split("e")[0]
            and (now[0].reason, now[0].stop) == ("stop", "e")
        ),
        GREEDY,
        (None, [], "x", ["x"] * 64),
        ("", [""], 5, [5], ["x"] * 65, "x" * 1025),
    ),
    "include_stop_str_in_output": Row(
        {"include_stop_str_in_output": True},
        lambda now, before: now[0].text == before[0].text + "e",
        GREEDY | {"stop": "e"},
        (False, None),
        NO_FLAGS,
    ),
    "seed": Row(
        {"seed": 8},
        ids_differ,
        HOT,
        (-(2**63), 2**64 - 1, None),
        (-(2**63) - 1, 2**64, *NO_COUNTS),
    ),
    "n": Row(
        {"n": 3},
        lambda now, before: (
            len(now) == 3 and ids_agree(now, before) and len({tuple(c.ids) for c in now}) == 3
        ),
        HOT,
        (1, None),
        (0, -1, 1025, 10**30, *NO_COUNTS),
    ),
    "best_of": Row(
        {"best_of": 2},
        lambda now, before: len(now) == len(before) == 2,
        HOT | {"n": 2},
        (None,),
        (0, 2, *NO_COUNTS),
        paths=(COMPLETIONS,),
    ),
    "max_tokens": Row(
        {"max_tokens": 3},
        lambda now, before: now[0].ids == before[0].ids[:3] and now[0].reason == "length",
        GREEDY,
        (1, None),
        (0, -1, *NO_COUNTS),
    ),
    "max_completion_tokens": Row(
        {"max_completion_tokens": 3},
        lambda now, before: now[0].ids == before[0].ids[:3],
        GREEDY,
        (1, None),
        (0, -1, *NO_COUNTS),
        paths=(CHAT,),
    ),
    "logprobs": Row(
        {"logprobs": "SOME"},
        lambda now, before: (
            len(now[0].names) == len(now[0].ids)
            and not before[0].names
            and "".join(now[0].names).startswith(now[0].text)
        ),
        GREEDY,
        (None,),
        (-1, 21, "x", []),
    ),
    "top_logprobs": Row(
        {"top_logprobs": 3},
        lambda now, before: (
            all(len(top) == 3 for top in now[0].tops) and not any(before[0].tops)
        ),
        GREEDY | {"logprobs": True},
        (0, 20, None),
        (-1, 21, *NO_COUNTS),
        paths=(CHAT,),
    ),
    "logprob_token_ids": Row(
        {"logprob_token_ids": [300, 302]},
        lambda now, before: all(
            {"token_id:300", "token_id:302"} <= top for top in now[0].tops
        ),
        GREEDY | {"logprobs": "SOME", "return_tokens_as_token_ids": True},
        ([], None),
        (*NO_IDS, list(range(129))),
    ),
    "logprobs_mode": Row(
        {"logprobs_mode": "processed", "temperature": 0.5},
        lambda now, before: now[0].ids == before[0].ids and now[0].values != before[0].values,
        {"temperature": 0.5, "seed": 7, "ignore_eos": True, "logprobs": "SOME"},
        ("raw", "raw_logprobs", None),
        ("logits", "raw_logits", 1, [], True),
    ),
    "prompt_logprobs": Row(
        {"prompt_logprobs": 2}, ids_agree, GREEDY, (0, 20, None), (-1, 21, *NO_COUNTS),
        is_streamed=False,
    ),
    "echo": Row(
        {"echo": True},
        lambda now, before: now[0].text == "Once upon a time" + before[0].text,
        GREEDY,
        (False, None),
        NO_FLAGS,
        paths=(COMPLETIONS,),
    ),
    "return_tokens_as_token_ids": Row(
        {"return_tokens_as_token_ids": True},
        lambda now, _: now[0].names == [f"token_id:{token_id}" for token_id in now[0].ids],
        GREEDY | {"logprobs": "SOME"},
        (False, None),
        NO_FLAGS,
    ),
    "return_token_ids": Row(
        {"return_token_ids": False},
        lambda now, before: (
            now[0].text == before[0].text and not now[0].ids and len(before[0].ids) == 10
        ),
        GREEDY,
        (None,),
        NO_FLAGS,
    ),
}  # fmt: skip
CONFLICTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (COMPLETIONS, "best_of", {"n": 2, "best_of": 3}),
    (COMPLETIONS, "min_tokens", {"min_tokens": 9, "max_tokens": 8}),
    (COMPLETIONS, "min_tokens", {"min_tokens": 1, "max_tokens": 0, "echo": True}),
    (
        COMPLETIONS,
        "allowed_token_ids",
        {"allowed_token_ids": [302], "stop_token_ids": [302], "min_tokens": 1},
    ),
    (COMPLETIONS, "prompt_logprobs", {"prompt_logprobs": 1, "stream": True}),
    (COMPLETIONS, "logprob_token_ids", {"logprob_token_ids": [1]}),
    (COMPLETIONS, "logprobs_mode", {"logprobs_mode": "processed"}),
    (
        COMPLETIONS,
        "logprobs_mode",
        {"logprobs_mode": "processed_logprobs", "logprobs": 1, "echo": True},
    ),
    (COMPLETIONS, "max_tokens", {"max_tokens": 0}),
    (COMPLETIONS, "stream_options", {"stream_options": {"include_usage": True}}),
    (COMPLETIONS, "ignore_eos", {"ignore_eos": True, "structured_outputs": {"regex": "a"}}),
    (COMPLETIONS, "n", {"prompt": ["a", "b"], "n": 600}),
    (CHAT, "top_logprobs", {"top_logprobs": 2}),
    (
        CHAT,
        "structured_outputs",
        {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
    ),
    (CHAT, "min_tokens", {"min_tokens": 9, "max_completion_tokens": 8}),
)  # fmt: skip


@pytest.fixture(scope="module")
def eos(_tiny_server: Any) -> int:
    """Returns the id that ends a turn of the built-in model."""
    _, answer = _tiny_server.post(
        "/tokenize", {"prompt": "<|im_end|>", "add_special_tokens": False}
    )
    (token_id,) = answer["tokens"]
    return int(token_id)


@pytest.fixture
def ask(tiny_server: Any, eos: int) -> Callable[..., list[Choice]]:
    """Function `ask(path, is_streamed, fields)` that returns the choices of a request."""

    def run(path: str, is_streamed: bool, fields: dict[str, Any]) -> list[Choice]:
        body = BASES[path] | COMMON | fields | {"stream": is_streamed}
        if body.get("logprobs") == "SOME":
            body["logprobs"] = True if path == CHAT else 0
        if body.get("logit_bias") == "EOS":
            body["logit_bias"] = {str(eos): 100}
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(tiny_server.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as response:
            content = response.read().decode()
        if is_streamed:
            data = re.findall(r"^data: (\{.*)$", content, re.MULTILINE)
            assert content.endswith("data: [DONE]\n\n")
        else:
            data = [content]
        choices: dict[int, Choice] = {}
        for choice in (c for text in data for c in json.loads(text)["choices"]):
            choices.setdefault(choice["index"], Choice()).add(choice)
        return [choices[index] for index in sorted(choices)]

    return run


CASES = [
    pytest.param(
        name, path, is_streamed, id=f"{name}-{path[4:8]}-{'sse' if is_streamed else 'one'}"
    )
    for name, row in ROWS.items()
    for path in row.paths
    for is_streamed in (False, True)
    if row.is_streamed or not is_streamed
]


@pytest.mark.parametrize(("name", "path", "is_streamed"), CASES)
def test_a_field_is_seen_to_do_what_it_says(
    ask: Callable[..., list[Choice]], name: str, path: str, is_streamed: bool
) -> None:
    row = ROWS[name]
    before = ask(path, is_streamed, row.beside)
    now = ask(path, is_streamed, row.beside | row.fields)
    assert row.seen(now, before), (now, before)
    for value in row.good:
        assert ask(path, is_streamed, row.beside | {name: value})


@pytest.mark.parametrize(("name", "path", "is_streamed"), CASES)
def test_a_bad_value_is_a_400_that_names_its_field(
    tiny_server: Any, name: str, path: str, is_streamed: bool
) -> None:
    bad = ROWS[name].bad
    if name == "logprobs":
        bad = NO_FLAGS if path == CHAT else (*bad, True, 1.5)
    beside = {"logprobs": 0} if path == COMPLETIONS else {"logprobs": True}
    for value in bad:
        body = BASES[path] | COMMON | {"stream": is_streamed} | beside | {name: value}
        status, answer = tiny_server.post(path, body)
        assert status == 400, (value, answer)
        error = answer["error"]
        # The error names an entry of a list or an object by its index or key.
        assert re.split(r"[.\[]", error["param"])[0] == name, (value, error)
        assert name in error["message"], (value, error)


@pytest.mark.parametrize("fields", [{"temperature": 0}, {"temperature": 1, "top_p": 0.9}], ids=str)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_conflict_met_while_running_is_a_400_that_names_its_fields(
    tiny_server: Any, path: str, fields: dict[str, Any]
) -> None:
    """After two tokens, the only allowed one would complete the bad word."""
    _, spelled = tiny_server.post("/tokenize", {"prompt": "&&&", "add_special_tokens": False})
    assert len(set(spelled["tokens"])) == 1
    assert len(spelled["tokens"]) == 3
    conflict = {"allowed_token_ids": spelled["tokens"][:1], "bad_words": ["&&&"]}
    body = BASES[path] | COMMON | fields | conflict
    status, answer = tiny_server.post(path, body)
    assert (status, answer["error"]["param"]) == (400, "allowed_token_ids"), answer
    assert "allowed_token_ids and bad_words" in answer["error"]["message"]

    headers = {"content-type": "application/json"}
    content = json.dumps(body | {"stream": True}).encode()
    request = urllib.request.Request(tiny_server.url + path, content, headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        data = re.findall(r"^data: (\{.*)$", response.read().decode(), re.MULTILINE)
    *chunks, last = map(json.loads, data)
    choice = Choice()
    for each in (each for chunk in chunks for each in chunk["choices"]):
        choice.add(each)
    assert choice.ids == spelled["tokens"][:2]
    assert (last["error"]["param"], last["error"]["code"]) == ("allowed_token_ids", 400)


@pytest.mark.parametrize(("path", "param", "fields"), CONFLICTS)
def test_a_conflict_is_a_400_that_names_a_field(
    tiny_server: Any, path: str, param: str, fields: dict[str, Any]
) -> None:
    for is_streamed in {fields.get("stream", "stream_options" not in fields), False}:
        body = {"model": "tiny", "stream": is_streamed} | BASES[path] | fields
        status, answer = tiny_server.post(path, body)
        assert (status, answer["error"]["param"]) == (400, param), answer


def test_the_guide_has_a_row_for_every_field_and_for_no_other() -> None:
    guide = (Path(__file__).parents[1] / "docs/guides/sampling.md").read_text()
    (table,) = re.findall(r"^\| field \|.*?\n\n", guide, re.MULTILINE | re.DOTALL)
    first = [line.split("|")[1] for line in table.splitlines()[2:] if line]
    assert {name for cell in first for name in re.findall(r"`(\w+)`", cell)} == {*ROWS}
