"""Plot of the distributions of several runs. Needs the extra `plot`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from openinfer_sim.errors import MissingExtra
from openinfer_sim.results._recorder import Recorder

_MS = 1e3


def plot_runs(runs: Mapping[str, Recorder], path: str | Path, *, title: str = "") -> None:
    """Draws the cumulative distributions of TTFT, TPOT and ITL, with one curve for each run.

    Args:
        runs: Recorders by their names in the legend.
        path: Path of the picture. Its suffix is the format.
        title: Title of the picture.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figure_class = import_figure()
    figure = figure_class(figsize=(12.0, 4.0), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    for name, recorder in runs.items():
        served = [record for record in recorder.records if record.is_served]
        parts = (
            [record.ttft_s for record in served],
            [record.tpot_s for record in served if record.tpot_s is not None],
            np.frombuffer(recorder.inter_token_s, np.float32),
        )
        for panel, seconds in zip(panels, parts, strict=True):
            _draw(panel, np.asarray(seconds, np.float64), name)
    for panel, label in zip(panels, ("TTFT", "TPOT", "ITL"), strict=True):
        panel.set_xlabel(f"{label}, ms")
        panel.set_xscale("log")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("share of requests or tokens")
    panels[-1].legend()
    figure.suptitle(title)
    figure.savefig(path)


def _draw(panel: Any, seconds: "np.ndarray", name: str) -> None:
    shares = np.linspace(0.0, 1.0, 501)
    if seconds.size:
        panel.plot(np.quantile(seconds, shares) * _MS, shares, label=name)


def import_figure() -> Any:
    """Returns matplotlib's class `Figure`.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "plot") from error
    return Figure
