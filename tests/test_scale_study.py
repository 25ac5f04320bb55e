"""The page of the scale study shows the figures of its data file."""

from pathlib import Path

import msgspec

from openinfer_sim import ROUTERS
from openinfer_sim.scale_study import Cell, update_page

_DOCS = Path(__file__).parents[1] / "docs"


def test_the_page_shows_the_recorded_figures():
    page = (_DOCS / "scale-study.md").read_text(encoding="utf-8")
    cells = msgspec.json.decode((_DOCS / "scale-study.json").read_bytes(), type=list[Cell])
    assert update_page(page, cells) == page
    assert {cell.report.router for cell in cells} == set(ROUTERS)
    assert all(cell.report.num_served == cell.report.num_requests for cell in cells)
