"""The command `openinfer sim`, with argparse and without the application."""

import argparse
import json
import re
import subprocess
import sys

import pytest

from openinfer_contract import OpenInferError
from openinfer_sim import add_command

_SHORT = ("--trace", "poisson:rate=10,duration=3,tenants=2")


@pytest.fixture
def run():
    def run(*arguments):
        parser = argparse.ArgumentParser()
        add_command(parser.add_subparsers())
        namespace = parser.parse_args(["sim", *arguments])
        return namespace.run(namespace, [])

    return run


def test_policies_stand_side_by_side_and_in_json(run, capsys, tmp_path):
    file = tmp_path / "reports.json"
    assert run("--policy", "fcfs", "--policy", "priority", *_SHORT, "--json", str(file)) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[1].split() == ["fcfs", "priority"]
    assert "requests in" in printed.err
    reports = json.loads(file.read_bytes())
    assert [report["policy"] for report in reports] == ["fcfs", "priority"]
    assert reports[0]["tenants"][0]["tenant"] == "tenant-0"


def test_reports_on_standard_output_stand_alone(run, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(*_SHORT, "--json", "-") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["policy"] == "fcfs"
    assert "requests served" in printed.err
    assert not list(tmp_path.iterdir())


def test_a_class_from_the_current_folder(run, capsys, tmp_path, monkeypatch):
    source = (
        "class Youngest:\n"
        "    def order(self, sequences, now):\n        return sequences[::-1]\n"
        "    def chunk(self, sequence, max_tokens):\n        return max_tokens\n"
        "    def victim(self, candidates):\n        return candidates[-1]\n"
    )
    (tmp_path / "policy_of_a_test.py").write_text(source)
    monkeypatch.chdir(tmp_path)
    trace = "bursts:rate=40,duration=2,size=40,input=3000"
    limits = ("--max-num-seqs", "4", "--replicas", "2", "--router", "random")
    name = "policy_of_a_test:Youngest"
    assert run("--policy", "fcfs", "--policy", name, "--trace", trace, *limits) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    (ttft,) = (row for row in rows if row[:2] == ["TTFT", "p50,"])
    assert ttft[-1] != ttft[-2]


def test_a_policy_at_fault_has_no_score(run, tmp_path, monkeypatch):
    (tmp_path / "policy_at_fault.py").write_text(
        "from openinfer_scheduler import FCFS\n"
        "class Lossy(FCFS):\n"
        "    def order(self, sequences, now):\n        return sequences[1:]\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OpenInferError, match=r"policy_at_fault:Lossy: order\(\) must return each"):
        run("--policy", "policy_at_fault:Lossy", *_SHORT)


def test_limits_and_switches_reach_the_engines(run, capsys):
    limits = ("--context-length", "0.1k", "--page-size", "32", "--max-num-seqs", "1K")
    assert run(*_SHORT, *limits, "--disable-radix-cache", "--admission", "lifetime") == 0
    printed = capsys.readouterr()
    head, *rows = printed.out.splitlines()
    assert head == (
        "poisson:rate=10,duration=3,input=1024,output=128,tenants=2 · qwen3-4b on h200, "
        "max_model_len 100, max_num_seqs 1024, block_size 32, admission lifetime, "
        "enable_prefix_caching False, seed 0"
    )
    assert any("0 of " in row for row in rows), "every request is longer than 100 tokens"
    assert re.search(
        r"fcfs: \d+ requests were refused, the first because: .*1024.*100", printed.err
    )


def test_a_replica_of_several_devices(run, capsys):
    assert run(*_SHORT, "--model", "deepseek-v4-flash", "--tp-size", "2") == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert "deepseek-v4-flash on h200, max_num_seqs 256, tensor_parallel_size 2" in head


def test_what_a_report_is_of_can_be_typed_again(run, capsys):
    trace = "bursts:rate=10,duration=3,size=5,input=100,output=9,spread=0.5,skew=1.5"
    assert run("--trace", trace, "--replicas", "2", "--router", "random") == 0
    head = capsys.readouterr().out.splitlines()[0]
    assert head == f"{trace} · qwen3-4b on 2 h200 by random, max_num_seqs 256, seed 0"


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("--max-num-seqs", "1x", "count such as"),
        ("--admission", "never", "choose from"),
        ("--eviction-policy", "fifo", "choose from"),
        ("--block-size", "many", "whole number"),
    ],
)
def test_values_are_those_of_the_server(run, capsys, flag, value, reason):
    with pytest.raises(SystemExit):
        run(flag, value)
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--policy", "nosuch"), "nosuch"),
        (("--trace", "nosuch"), "nosuch"),
        (("--model", "nosuch"), "nosuch"),
        (("--device", "nosuch"), "nosuch"),
        (("--router", "nosuch"), "nosuch"),
        (("--replicas", "0"), "replicas"),
        (("--kv-cache-bytes", "3000"), "kv_cache_bytes 3000 .* at least 2359296"),
        (("--kv-cache-bytes", "3000", "--model", "qwen3_5-4b"), "kv_cache_bytes 3000"),
        (("--model", "kimi-k2"), "--tensor-parallel-size 8"),
        (("-tp", "16"), "tensor_parallel_size"),
        (("--seed", "-1"), "--seed"),
    ],
)
def test_what_is_wrong_is_named(run, arguments, named):
    with pytest.raises(OpenInferError, match=named):
        run(*_SHORT, *arguments)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--json", "/no/such/folder/x.json"), "/no/such/folder"),
        (("--plot", "/no/such/folder/x.png"), "/no/such/folder"),
        (("--plot", "runs.pgn"), r"--plot runs.pgn: unknown format.*png"),
        (("--plot", "-"), "suffix"),
    ],
)
def test_a_file_that_cannot_be_written_costs_no_run(run, capsys, arguments, named):
    with pytest.raises(OpenInferError, match=named):
        run(*_SHORT, *arguments)
    assert not capsys.readouterr().err, "nothing was simulated"


def test_it_runs_without_the_application(tmp_path):
    """`python -m openinfer_sim` runs, and reports an error by message and exit status."""
    module = (sys.executable, "-m", "openinfer_sim")
    done = subprocess.run([*module, *_SHORT, "--json", "-"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["policy"] == "fcfs"
    failed = subprocess.run([*module, "--trace", "pigeons"], capture_output=True, text=True)
    assert failed.returncode == 1
    assert "openinfer_sim: unknown trace 'pigeons'" in failed.stderr


def test_an_objective_is_reported(run, capsys):
    assert run(*_SHORT, "--slo-ttft-ms", "1000", "--slo-e2e-ms", "60000", "--json", "-") == 0
    (report,) = json.loads(capsys.readouterr().out)
    assert report["slo"] == {"ttft_ms": 1000.0, "tpot_ms": None, "e2e_ms": 60000.0}
    assert report["slo_share"] == 1.0
    with pytest.raises(SystemExit):
        run("--slo-ttft-ms", "0")
    assert "above 0" in capsys.readouterr().err
