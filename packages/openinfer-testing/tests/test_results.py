import json
import sys

from openinfer_testing import results


def test_a_benchmark_run_as_a_command_writes_its_result(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["bench", "--record", str(tmp_path / "new")])
    results.run("bench", lambda: {"us": 1.5}, "About.")
    (file,) = (tmp_path / "new").iterdir()
    report = json.loads(file.read_text())
    assert file.name == f"bench-{report['date'][:10]}.json"
    assert report["us"] == 1.5
    assert list(report)[:4] == ["benchmark", "date", "commit", "machine"]
    assert report["machine"]["cores"] >= 1


def test_a_suffix_tells_two_results_of_one_day_apart(tmp_path):
    header = results.header("bench")
    names = {results.write(tmp_path, header, suffix=suffix).name for suffix in ("-a", "-b")}
    assert names == {path.name for path in tmp_path.iterdir()}
    assert len(names) == 2


def test_without_the_flag_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["bench"])
    results.run("bench", dict, None)
    assert not list(tmp_path.iterdir())
