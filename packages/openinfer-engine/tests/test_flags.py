"""Flags from options structs: on a command line, in a mapping, in a table; and their values."""

import argparse
from typing import Annotated, Literal

import msgspec
import pytest

from openinfer_engine import (
    ENGINE_FLAGS,
    EngineOptions,
    FlagRejected,
    Option,
    add_flags,
    flag_table,
    flags_of,
    read_flags,
)
from openinfer_engine.flags._values import parse_count, parse_dtype

ENGINE_SPELLINGS = """
--admission --block-size --chunked-prefill-size --context-length --device --disable-cuda-graph
--disable-radix-cache --dtype --enable-prefix-caching --enforce-eager --eviction-policy
--gpu-memory-utilization --grammar-backend --kv-cache-bytes --kv-cache-memory-bytes
--kv-events-config --load-format --long-prefill-token-threshold --max-model-len
--max-num-batched-tokens --max-num-partial-prefills --max-num-queued-reqs --max-num-queued-tokens
--max-num-seqs --max-queued-requests --max-queued-tokens --max-running-requests
--mem-fraction-static --no-enable-prefix-caching --no-enforce-eager --no-trace-kernels --num-threads
--page-size --quantization --radix-eviction-policy --schedule-policy --scheduling-policy --seed
--structured-outputs-backend --target-itl-ms --tensor-parallel-size --tp --tp-size --trace-dir
--trace-file --trace-kernels --trace-max-bytes -q -tp
"""


class Inner(msgspec.Struct):
    size: int = 1


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    plain: int = 3
    """A field without an `Option` has no flag."""
    limit: Annotated[int | None, Option("upper bound", ("--limit", "-l"), "count")] = None
    share: Annotated[float, Option("100 % of what")] = 0.5
    is_fast: Annotated[bool, Option("be fast", off=("--slow",))] = False
    keys: Annotated[tuple[str, ...], Option("keys", names=("--key",))] = ()
    mode: Annotated[Literal["a", "b"] | None, Option("mode")] = None
    dtype: Annotated[str, Option("number format", kind="dtype")] = "auto"
    inner: Annotated[Inner | None, Option("an object")] = None


FLAGS = flags_of(Sample, "sample")
(LIMIT, SHARE, IS_FAST, KEYS, MODE, DTYPE, INNER) = FLAGS


def parse(*arguments):
    parser = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_argument("positional", nargs="?")
    add_flags(parser, FLAGS)
    return vars(parser.parse_args(arguments))


def test_every_option_of_an_engine_is_a_flag():
    fields = [field.name for field in msgspec.structs.fields(EngineOptions)]
    assert [flag.dest for flag in ENGINE_FLAGS] == fields


def test_the_spellings_of_the_engines_flags_do_not_change():
    spellings = [name for flag in ENGINE_FLAGS for name in flag.spellings]
    assert sorted(spellings) == ENGINE_SPELLINGS.split()


def test_a_flag_knows_its_kind_choices_and_default_from_its_field():
    assert [flag.kind for flag in FLAGS] == [
        "count",
        "float",
        "switch",
        "list",
        "str",
        "dtype",
        "json",
    ]
    assert [flag.default for flag in FLAGS] == [None, 0.5, False, (), None, "auto", None]
    assert MODE.choices == ("a", "b")
    assert LIMIT.names == ("--limit", "-l")
    assert IS_FAST.spellings == ("--is-fast", "--slow")
    assert {flag.scope for flag in FLAGS} == {"sample"}


def test_a_type_without_a_kind_is_refused():
    class Odd(msgspec.Struct):
        odd: Annotated[bytes, Option("bytes")] = b""

    with pytest.raises(TypeError, match="odd"):
        flags_of(Odd, "sample")


def test_a_command_line_sets_only_what_it_names():
    assert parse() == {"positional": None}
    assert parse("-l", "2k", "--share=0.25", "--is-fast", "--mode", "b") == {
        "positional": None,
        "limit": 2000,
        "share": 0.25,
        "is_fast": True,
        "mode": "b",
    }
    assert parse("--slow")["is_fast"] is False


def test_a_list_takes_one_value_at_a_time_and_leaves_the_positional():
    assert parse("--key", "s3cret", "/path") == {"positional": "/path", "keys": ["s3cret"]}
    assert parse("--key", "a", "--key", "b,c")["keys"] == ["a", "b,c"]


def test_help_shows_defaults_and_how_to_repeat():
    parser = argparse.ArgumentParser()
    add_flags(parser, FLAGS, Sample(limit=7))
    shown = " ".join(parser.format_help().split())
    for text in ("upper bound (7)", "100 % of what (0.5)", "keys; repeat the flag for more"):
        assert text in shown


def test_the_table_shows_defaults_choices_and_all_spellings():
    rows = flag_table(FLAGS, {"mode": "b"}).splitlines()
    assert len(rows) == 2 + len(FLAGS)
    assert rows[2] == "| `--limit` | `-l` |  | upper bound |"
    assert rows[4] == "| `--is-fast` | `--slow` | `false` | be fast |"
    assert rows[6] == "| `--mode` |  | `b` | mode (a, b) |"


def test_a_mapping_takes_every_spelling_and_keeps_what_it_does_not_know():
    given = {"limit": "4k", "is-fast": True, "key": "one", "inner": {"size": 2}, "mode": None}
    values, unknown = read_flags(FLAGS, {**given, "other": 1}.items())
    assert values == {"limit": 4000, "is_fast": True, "keys": ["one"], "inner": {"size": 2}}
    assert unknown == {"other": 1}
    assert read_flags(FLAGS, [("slow", True)])[0] == {"is_fast": False}


def test_a_mapping_may_not_name_a_flag_twice():
    with pytest.raises(FlagRejected, match="limit and l are the same option"):
        read_flags(FLAGS, [("limit", 1), ("l", 2)])


@pytest.mark.parametrize(
    ("flag", "value", "converted"),
    [
        (LIMIT, 4096, 4096),
        (LIMIT, "4k", 4000),
        (SHARE, 0.5, 0.5),
        (IS_FAST, False, False),
        (KEYS, "one", ["one"]),
        (KEYS, ["one", 2], ["one", "2"]),
        (MODE, "b", "b"),
        (DTYPE, "half", "float16"),
        (INNER, {"hwm": 5}, {"hwm": 5}),
        (INNER, '{"hwm": 5}', {"hwm": 5}),
    ],
)
def test_values_that_are_no_arguments_convert_too(flag, value, converted):
    assert flag.convert(value) == converted


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("limit", 0),
        ("limit", True),
        ("limit", 1.5),
        ("is-fast", "yes"),
        ("is-fast", 1),
        ("mode", "tpu"),
        ("share", ["a", "b"]),
        ("dtype", "int8"),
        ("inner", "{"),
        ("inner", "[1]"),
        ("inner", ["{}"]),
    ],
)
def test_values_that_do_not_convert_name_their_place(name, value):
    with pytest.raises(FlagRejected, match=rf"^{name}(:| must) ") as caught:
        read_flags(FLAGS, [(name, value)])
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1", 1),
        ("4096", 4096),
        ("32k", 32_000),
        ("32K", 32_768),
        ("1m", 10**6),
        ("1M", 2**20),
        ("4g", 4 * 10**9),
        ("4G", 4 * 2**30),
        ("1T", 2**40),
        ("1.5k", 1500),
        ("0.5K", 512),
        ("2.3k", 2300),
    ],
)
def test_counts(text, count):
    assert parse_count(text) == count


@pytest.mark.parametrize(
    "text",
    [
        *("", "k", "0", "-1", "1.5", "0.1", "1.00001k", "4GB", "4 G", "1e3", "1e400.", "1_000"),
        *("nan", "inf", "t", "1kk", "9" * 30, "8388608T", "٣"),
    ],
)
def test_what_is_no_count(text):
    with pytest.raises(ValueError, match=r"number|count|at (least|most)"):
        parse_count(text)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("auto", "auto"),
        ("bfloat16", "bfloat16"),
        ("bf16", "bfloat16"),
        ("half", "float16"),
        ("fp16", "float16"),
        ("float16", "float16"),
        ("float", "float32"),
        ("float32", "float32"),
    ],
)
def test_dtypes(text, dtype):
    assert parse_dtype(text) == dtype
