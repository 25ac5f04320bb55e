"""Mooncake traces: a golden file, and an invalid file for each error."""

from pathlib import Path

import pytest

from openinfer_sim import Segment, TraceError, parse_trace, read_mooncake, simulate

_GOLDEN = Path(__file__).parent / "data/mooncake.jsonl"


def test_the_golden_file_reads_as_it_is_written():
    sessions = read_mooncake(_GOLDEN).sessions
    assert [session.start_s for session in sessions] == [0.0, 1.5, 3.0]
    assert [turn.num_output_tokens for s in sessions for turn in s.turns] == [20, 7, 1]
    assert sessions[0].turns[0].segments == (Segment(0, 512), Segment(1, 512), Segment(2, 276))
    assert sessions[1].turns[0].segments[-1] == Segment(3, 512)
    assert (sessions[1].tenant, sessions[1].priority) == ("b", 2)


def test_equal_hash_ids_are_hits():
    first, second, third = simulate(read_mooncake(_GOLDEN)).recorder.records
    assert (first.num_cached_tokens, third.num_cached_tokens) == (0, 0)
    assert second.num_cached_tokens == 1024


def test_speed_and_limit():
    trace = parse_trace(f"mooncake:path={_GOLDEN},speed=3,limit=2")
    assert [session.start_s for session in trace.sessions] == [0.0, 0.5]


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("{", "line 2"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 5}', "hash_ids"),
        ('{"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [1]}', "2 blocks"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 5, "hash_ids": []}', "at least 1"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 0, "hash_ids": [1]}', "at least 1"),
        ('{"timestamp": -1, "input_length": 5, "output_length": 1, "hash_ids": [1]}', "timestamp"),
        ('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [-1]}', "hash_ids"),
        ('{"timestamp": 0, "input_length": "5", "output_length": 1, "hash_ids": [1]}', "input_len"),
    ],
)
def test_a_faulty_line_is_named(tmp_path, line, named):
    good = _GOLDEN.read_text().splitlines()[0]
    file = tmp_path / "trace.jsonl"
    file.write_text(f"{good}\n{line}\n")
    with pytest.raises(TraceError, match=named):
        read_mooncake(file)


def test_an_empty_file_is_refused(tmp_path):
    file = tmp_path / "trace.jsonl"
    file.write_text("\n")
    with pytest.raises(TraceError, match="no request"):
        read_mooncake(file)


@pytest.mark.parametrize("options", [{"speed": 0.0}, {"limit": 0}])
def test_options_that_make_no_sense(options):
    with pytest.raises(TraceError, match=next(iter(options))):
        read_mooncake(_GOLDEN, **options)
