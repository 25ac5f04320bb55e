from typing import Annotated, Literal

import msgspec
import pytest

from openinfer import UsageError
from openinfer.options._flags import FLAGS
from openinfer.options._line_options import (
    check_line_options,
    parse_line_options,
)
from openinfer.options._option_structs import engine_options
from openinfer.options._other_servers import ELSEWHERE
from openinfer_engine import EngineOptions, Option
from openinfer_kv_cache import PublisherError


class _Options(msgspec.Struct, frozen=True, kw_only=True):
    mode: Literal["fast", "slow"] = "fast"
    num_experts: int = 8
    is_fused: bool = True


def _parse(*arguments):
    return parse_line_options(arguments, _Options, "a-line")


def test_options_of_the_line_convert():
    assert _parse() == {}
    assert _parse("--num-experts", "4", "--mode=slow") == {"num_experts": 4, "mode": "slow"}


@pytest.mark.parametrize(("argument", "value"), [("--is-fused", True), ("--no-is-fused", False)])
def test_a_bool_is_a_switch(argument, value):
    assert _parse(argument) == {"is_fused": value}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--num-experts", "many"), ("a-line", "--num-experts", "`int`")),
        (("--mode", "odd"), ("a-line", "--mode", "takes one of fast, slow, not 'odd'")),
        (("--num-experts",), ("--num-experts", "expected one argument")),
        (("--is-fused", "stray"), ("unexpected argument", "stray")),
        (("--num-expert", "4"), ("--num-expert ", "did you mean --num-experts")),
        (("--max-modle-len", "4"), ("--max-modle-len", "did you mean --max-model-len")),
        (("--max-modle-len=4",), ("--max-modle-len ", "a-line")),
        (("--xyzzy",), ("--xyzzy", "--help lists")),
        (("--nonsense", "4"), ("--nonsense ", "--help lists")),
        (("--top-k", "4"), ("--top-k ", "did you mean --top-p?")),
        (("--temprature", "3"), ("--temprature ", "did you mean --temperature?")),
        (("--port", "3"), ("--port has no effect on this command",)),
    ],
)
def test_what_nobody_consumes_is_refused(arguments, words):
    with pytest.raises(UsageError) as caught:
        _parse(*arguments)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize("name", sorted(ELSEWHERE))
def test_flags_of_other_servers_are_refused_by_name(name):
    with pytest.raises(UsageError, match=r"^(\S+) .*; leave it out$") as caught:
        _parse(name, "value")
    assert str(caught.value).startswith(f"{name} ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--enable-lora",), "--enable-lora is not available in this version of OpenInfer"),
        (("--enable-auto-tool-choice",), "--enable-auto-tool-choice is always on here"),
        (("--enable-metrics",), "--enable-metrics is always on here"),
        (("--enable-chunked-prefill",), "--enable-chunked-prefill is always on here"),
        (("--pipeline-parallel-size", "1"), "--pipeline-parallel-size takes only 1 here"),
        (("-pp", "2"), "-pp takes only 1 here"),
        (("--kv-cache-dtype=auto",), "--kv-cache-dtype takes only auto here"),
    ],
)
def test_what_is_always_so_is_said(arguments, said):
    with pytest.raises(UsageError) as caught:
        _parse(*arguments)
    assert str(caught.value) == f"{said}; leave it out"


def test_no_flag_is_both_ours_and_elsewhere():
    assert not ELSEWHERE.keys() & {name for flag in FLAGS for name in flag.spellings}


class _Annotated(msgspec.Struct, frozen=True, kw_only=True):
    mode: Annotated[Literal["fast", "slow"] | None, Option("how", names=("--mode", "-m"))] = None
    room: Annotated[int, Option("bytes", kind="count")] = 8
    is_fused: Annotated[bool, Option("fuse", off=("--split",))] = True


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        (("-m", "slow"), {"mode": "slow"}),
        (("--room=2K",), {"room": 2048}),
        (("--split",), {"is_fused": False}),
    ],
)
def test_a_line_may_describe_its_options(arguments, values):
    assert parse_line_options(arguments, _Annotated, "a-line") == values


def test_described_options_are_keys_too():
    values = {"room": "2K", "m": "fast", "split": True}
    expected = {"room": 2048, "mode": "fast", "is_fused": False}
    assert check_line_options(values, _Annotated, "a-line") == expected
    with pytest.raises(UsageError, match=r"^mode, .*takes one of fast, slow"):
        check_line_options({"mode": "odd"}, _Annotated, "a-line")
    with pytest.raises(UsageError, match=r"--mode/-m: .*an option of a-line"):
        parse_line_options(("--mode", "odd"), _Annotated, "a-line")


def test_a_line_may_own_a_name_that_others_have():
    class Own(msgspec.Struct, frozen=True, kw_only=True):
        kv_cache_dtype: str = ""

    assert parse_line_options(("--kv-cache-dtype", "fp8"), Own, "x") == {"kv_cache_dtype": "fp8"}


def test_values_by_name_are_checked_alike():
    assert check_line_options({"num_experts": 2}, _Options, "a-line") == {"num_experts": 2}
    with pytest.raises(UsageError, match=r"^num_exparts .*did you mean num_experts"):
        check_line_options({"num_exparts": 2}, _Options, "a-line")
    for name, words in (("max_modle_len", "mean max_model_len"), ("xyzzy", "flags.md")):
        with pytest.raises(UsageError, match=rf"^{name} is used by neither .*{words}"):
            check_line_options({name: 2}, _Options, "a-line")
    with pytest.raises(UsageError, match=r"^mode, .*takes one of fast, slow"):
        check_line_options({"mode": "odd"}, _Options, "a-line")
    with pytest.raises(UsageError, match=r"^speculative_config is not available"):
        check_line_options({"speculative_config": "{}"}, _Options, "a-line")


def test_a_files_keys_name_the_file_and_the_long_flag():
    def check(**values):
        spelled = {name.replace("_", "-"): value for name, value in values.items()}
        return check_line_options(spelled, _Options, "a-line", "--config x.yaml: ")

    assert check(num_experts=2, mode=None) == {"num_experts": 2}
    with pytest.raises(UsageError, match=r"^--config x.yaml: num-experts, .*`int`"):
        check(num_experts="many")
    with pytest.raises(UsageError, match=r"^--config x.yaml: kv-cache-memory .*-memory-bytes\?$"):
        check(kv_cache_memory=2)
    with pytest.raises(UsageError, match=r"^--config x.yaml: num-exparts .*mean num-experts\?$"):
        check(num_exparts=2)
    with pytest.raises(UsageError, match=r"^--config x.yaml: enable-lora is not available"):
        check(enable_lora=True)
    twice = {"num-experts": 2, "num_experts": 2}
    with pytest.raises(UsageError, match="num-experts and num_experts are the same option"):
        check_line_options(twice, _Options, "a-line")


def test_every_engine_flag_is_an_engine_option():
    fields = {field.name for field in msgspec.structs.fields(EngineOptions)}
    assert fields == {flag.dest for flag in FLAGS if flag.scope == "engine"}


def test_engine_options_pass_the_others_over():
    assert engine_options({"port": 1, "block_size": 8}) == EngineOptions(block_size=8)


def test_an_engine_option_of_the_wrong_type_is_named():
    with pytest.raises(UsageError, match=r"^block_size \(--block-size\): Expected `int"):
        engine_options({"block_size": "many"})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"target_itl_ms": -3.0}, r"target_itl_ms \(--target-itl-ms\) must be a positive .* -3"),
        ({"trace_max_bytes": 5}, r"trace_max_bytes \(--trace-max-bytes\) must be at least"),
        (
            {"kv_events_config": {"enable_kv_cache_events": True}, "enable_prefix_caching": False},
            r"kv_events_config \(--kv-events-config\): without prefix caching",
        ),
    ],
)
def test_an_engine_option_that_makes_no_sense_is_named(values, words):
    with pytest.raises(UsageError, match=f"^{words}"):
        engine_options(values)


def test_kv_events_are_consumed_key_by_key(monkeypatch):
    config = {"enable_kv_cache_events": True, "topic": "kv"}
    assert engine_options({"kv_events_config": config}).kv_events_config.topic == "kv"
    for key, value, words in [
        ("topics", "kv", "unknown field `topics`"),
        ("hwm", 0, "hwm must be"),
        ("max_queue_size", 9, "use hwm"),
    ]:
        with pytest.raises(
            UsageError, match=rf"^kv_events_config \(--kv-events-config\): .*{words}"
        ):
            engine_options({"kv_events_config": {**config, key: value}})
    with pytest.raises(UsageError, match="without prefix caching"):
        engine_options({"kv_events_config": config, "enable_prefix_caching": False})
    monkeypatch.setattr("openinfer_kv_cache.events._config.find_spec", lambda name: None)
    with pytest.raises(PublisherError, match="pip install"):
        engine_options({"kv_events_config": config})


def test_a_flag_of_an_engine_that_is_not_given_names_the_engine():
    pytest.importorskip("openinfer_sim", reason="the engine whose flag it is")

    class Options(msgspec.Struct, frozen=True):
        pass

    with pytest.raises(UsageError, match=r"^--sim-model is an option of --engine sim, "):
        parse_line_options(["--sim-model=qwen3-8b"], Options, "qwen3")
