import argparse

import pytest

from openinfer.commands._cli import _parse as _parse_command
from openinfer.commands._cli import _parser
from openinfer.options._flags import FLAGS, TERMINAL_FLAGS, add_flags

_SCOPES = ("model", "engine", "text", "http", "server")
_TEXTS = {
    "str": ("some", "some"),
    "int": ("3", 3),
    "float": ("0.5", 0.5),
    "count": ("2K", 2048),
    "list": ("one", ["one"]),
    "dtype": ("bf16", "bfloat16"),
    "json": ('{"a": 1}', {"a": 1}),
}
_SPELLINGS = [
    pytest.param(flag, name, id=name) for flag in FLAGS for name in flag.names if not flag.off
]
_SWITCHES = [
    pytest.param(flag, name, name in flag.names, id=name)
    for flag in FLAGS
    for name in (*flag.names, *flag.off)
    if flag.off
]


def _parse(*arguments, scopes=_SCOPES):
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    add_flags(parser, scopes)
    namespace, unknown = parser.parse_known_args(arguments)
    return vars(namespace), unknown


@pytest.mark.parametrize(("flag", "name"), _SPELLINGS)
def test_every_spelling_sets_its_destination(flag, name):
    text, value = _TEXTS[flag.kind]
    if flag.choices:
        text = value = flag.choices[-1]
    assert _parse(name, text) == ({flag.dest: value}, [])
    if name.startswith("--"):
        assert _parse(f"{name}={text}") == ({flag.dest: value}, [])


@pytest.mark.parametrize(("flag", "name", "value"), _SWITCHES)
def test_every_switch_goes_on_and_off(flag, name, value):
    assert _parse(name) == ({flag.dest: value}, [])


# Spellings are public: add those of a new flag, and never remove one.
SPELLINGS = """
--admin-api-key --admission --allowed-origins --api-key --api-server-count --block-size
--body-timeout-s --chat-template --chunked-prefill-size --context-length --device
--disable-cuda-graph --disable-radix-cache --download-dir --drain-timeout-s --dtype
--enable-prefix-caching --enforce-eager --engine --engine-address --eviction-policy
--generation-config --gpu-memory-utilization --grammar-backend --host --kv-cache-bytes
--kv-cache-memory-bytes --kv-events-config --load-format --log-level
--long-prefill-token-threshold --max-body-bytes --max-in-flight --max-model-len
--max-num-batched-tokens --max-num-partial-prefills --max-num-queued-reqs
--max-num-queued-tokens --max-num-seqs --max-queued-requests --max-queued-tokens
--max-running-requests --mem-fraction-static --metrics-prefix --model --model-line --model-path
--no-enable-prefix-caching --no-enforce-eager --no-trace-kernels
--no-trust-request-chat-template --num-threads --page-size --port --quantization
--radix-eviction-policy --reasoning-field --reasoning-parser --request-timeout-s
--resume-timeout-s --revision --schedule-policy --scheduling-policy --seed --served-model-name
--ssl-ca-certs --ssl-certfile --ssl-keyfile --stall-timeout-s --structured-outputs-backend
--target-itl-ms --tensor-parallel-size --tokenizer-backend --tool-call-parser --tp --tp-size
--trace-dir --trace-file --trace-kernels --trace-max-bytes --trust-request-chat-template
--uvicorn-log-level -q -tp
"""


def test_the_set_of_spellings():
    assert sorted(name for flag in FLAGS for name in flag.spellings) == SPELLINGS.split()


def test_only_what_is_set_reaches_the_namespace():
    assert _parse() == ({}, [])


def test_spellings_and_destinations_are_unique():
    names = [name for flag in FLAGS for name in (*flag.names, *flag.off)]
    assert len(set(names)) == len(names)
    assert len({flag.dest for flag in FLAGS}) == len(FLAGS)


@pytest.mark.parametrize("flag", [f for f in FLAGS if f.scope == "engine"], ids=lambda f: f.dest)
def test_an_engine_option_is_a_spelling_of_its_flag(flag):
    assert f"--{flag.dest.replace('_', '-')}" in flag.names, "errors of the engine name it so"


def test_a_list_is_repeated():
    names = ("--served-model-name", "a", "--served-model-name", "b")
    assert _parse(*names, "--port", "1")[0] == {
        "served_model_names": ["a", "b"],
        "port": 1,
    }


@pytest.mark.parametrize("name", [f.names[0] for f in FLAGS if f.kind == "list"])
def test_a_list_never_takes_the_model(name):
    namespace, extra = _parse_command(_parser(), ["serve", name, "s3cret", "/path/ck"])
    assert (namespace.positional, extra) == ("/path/ck", [])
    (flag,) = (flag for flag in FLAGS if name in flag.names)
    assert getattr(namespace, flag.dest) == ["s3cret"]


def test_scopes_keep_flags_apart():
    assert _parse("--port", "1", scopes=("engine",)) == ({}, ["--port", "1"])


def test_no_abbreviation_is_guessed():
    assert _parse("--max-model", "3") == ({}, ["--max-model", "3"])


@pytest.mark.parametrize("name", ["-pp", "-dp"])
def test_short_flags_of_others_are_not_taken_for_ours(name):
    assert _parse(name, "2") == ({}, [name, "2"])


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("--max-model-len", "1x", "count such as"),
        ("--dtype", "fp8", "one of auto"),
        ("--block-size", "many", "whole number"),
        ("--seed", str(2**70), "must be at most"),
        ("--max-model-len", "0", "must be at least 1"),
        ("--gpu-memory-utilization", "all", "a number"),
        ("--device", "tpu", "choose from"),
    ],
)
def test_a_value_that_does_not_convert_says_why(name, text, reason):
    with pytest.raises(argparse.ArgumentError) as caught:
        _parse(name, text)
    assert name in str(caught.value)
    assert reason in str(caught.value)
    assert "parse_" not in str(caught.value)


def test_the_terminals_own_flags_are_known():
    (commands,) = (action.choices for action in _parser()._actions if action.choices)
    ours = {name for flag in FLAGS for name in (*flag.names, *flag.off)} | {"-h", "--help"}
    spellings = {
        name
        for command in ("chat", "complete")
        for action in commands[command]._actions
        for name in action.option_strings
    }
    assert spellings - ours == set(TERMINAL_FLAGS)
