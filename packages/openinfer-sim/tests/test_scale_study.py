"""A small scale study: what its command writes, and that sizes and routers differ."""

import json

import msgspec
import pytest

from openinfer_sim import ROUTERS, AgentMix, Setup, SimError
from openinfer_sim.scale_study import Cell, format_cells, main, run_study, update_page

_MIX = AgentMix(turns=6, output=40, context=8000, system=4000)
_SETUP = Setup(block_size=128)


@pytest.mark.long
def test_prefix_aware_holds_its_hits_where_random_loses_them():
    cells = run_study(
        [2, 12], list(ROUTERS), sessions_per_replica=3, ramp_s=20, setup=_SETUP, mix=_MIX
    )
    rates = {(c.report.router, c.report.num_replicas): c.report.hit_rate for c in cells}
    assert len(rates) == 6
    assert rates["prefix-aware", 12] > 0.85
    assert rates["random", 12] < rates["random", 2] - 0.1
    assert rates["random", 12] < 0.6


def test_the_command_writes_after_each_cell_and_fills_the_page(tmp_path, capsys):
    figures, page = tmp_path / "study.json", tmp_path / "page.md"
    page.write_text("Above.\n<!-- table -->\nold\n<!-- end of table -->\nBelow.\n")
    sizes = (
        "--replicas",
        "2",
        "--turns",
        "2",
        "--jobs",
        "2",
        "--routers",
        "random",
        "prefix-aware",
    )
    assert main([*sizes, "--json", str(figures), "--page", str(page)]) == 0
    cells = msgspec.json.decode(figures.read_bytes(), type=list[Cell])
    assert [cell.report.router for cell in cells] == ["random", "prefix-aware"]
    assert json.loads(figures.read_bytes())[0]["num_sessions"] == 2
    table = format_cells(cells)
    assert page.read_text() == f"Above.\n<!-- table -->\n{table}\n<!-- end of table -->\nBelow.\n"
    printed = capsys.readouterr()
    assert table in printed.out
    assert sorted(printed.err.splitlines()) == sorted(table.splitlines()[2:])


def test_what_is_there_is_not_run_again(tmp_path, capsys):
    figures = tmp_path / "study.json"
    small = ("--replicas", "2", "--turns", "2", "--jobs", "1", "--json", str(figures), "--resume")
    assert main([*small, "--routers", "random"]) == 0
    (first,) = msgspec.json.decode(figures.read_bytes(), type=list[Cell])
    capsys.readouterr()
    assert main([*small, "--routers", "random", "least-loaded"]) == 0
    cells = msgspec.json.decode(figures.read_bytes(), type=list[Cell])
    assert cells[0] == first
    assert [cell.report.router for cell in cells] == ["random", "least-loaded"]
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_page_without_marks_is_named():
    with pytest.raises(SimError, match="<!-- table -->"):
        update_page("Nothing here.", [])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--replicas", "2", "0"), "--replicas must be at least 1"),
        (("--json", "/no/such/folder/x.json"), "/no/such/folder is not a folder"),
        (("--page", "/no/such/page.md"), "no such file"),
    ],
)
def test_what_cannot_be_written_costs_no_study(capsys, monkeypatch, arguments, reason):
    monkeypatch.setattr("openinfer_sim.scale_study.run_study", lambda *_, **__: pytest.fail("ran"))
    with pytest.raises(SystemExit):
        main(arguments)
    assert reason in capsys.readouterr().err
