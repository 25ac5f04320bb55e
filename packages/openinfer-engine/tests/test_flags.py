"""Values of flags, and the table of the engine's own."""

import argparse

import msgspec
import pytest

from openinfer_engine import ENGINE_FLAGS, EngineOptions, add_flags
from openinfer_engine.flags._values import parse_count, parse_dtype


def test_every_option_of_an_engine_is_a_flag():
    fields = [field.name for field in msgspec.structs.fields(EngineOptions)]
    assert sorted(flag.dest for flag in ENGINE_FLAGS) == sorted(fields)


def test_help_shows_the_defaults_of_whoever_asks():
    parser = argparse.ArgumentParser()
    add_flags(parser, ENGINE_FLAGS, EngineOptions(max_num_seqs=7))
    shown = " ".join(parser.format_help().split())
    assert "requests running at once (7)" in shown
    assert "tokens of a cache block (16)" in shown
    assert vars(parser.parse_args([])) == {}, "only what is set reaches the namespace"


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
