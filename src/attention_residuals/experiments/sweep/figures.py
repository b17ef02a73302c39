"""The heat maps of a sweep, drawn from its folders alone."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from attention_residuals.experiments.document import DOTS_PER_INCH
from attention_residuals.experiments.sweep import paper
from attention_residuals.experiments.sweep.analysis import Grid, SweepResults, optimum

HALF = 0.5


def draw_sweep(sweep: SweepResults, folder: Path) -> dict[str, Path]:
    """Draw ours and the paper's maps as PNG into `folder`; ours is left out while there is nothing to show."""
    folder.mkdir(exist_ok=True)
    figures = {"paper": _paper_figure()}
    if any(value is not None for row in sweep.differences() for value in row):
        figures["sweep"] = sweep_figure(sweep)
    paths = {}
    for name, figure in figures.items():
        paths[name] = folder / f"{name}.png"
        figure.savefig(paths[name], dpi=DOTS_PER_INCH)
        pyplot.close(figure)
    return paths


def sweep_figure(sweep: SweepResults) -> Figure:
    """Losses of baseline and arm, and their paired difference; a frame around the lowest loss."""
    baseline, arm = sweep.arms
    maps = (sweep.losses(baseline), sweep.losses(arm), sweep.differences())
    titles = (baseline, arm, f"{arm} minus {baseline}")
    return _figure(maps, titles, sweep.width_ratios, sweep.head_ratios)


def _paper_figure() -> Figure:
    base, arm = paper.BASELINE, paper.ATTENTION_RESIDUALS
    difference = [[b - a for a, b in zip(one, other, strict=True)] for one, other in zip(base, arm, strict=True)]
    titles = ("paper: baseline", "paper: Attention Residuals", "difference")
    return _figure((base, arm, difference), titles, paper.WIDTH_RATIOS, paper.HEAD_RATIOS)


def _figure(
    maps: Sequence[Grid], titles: Sequence[str], width_ratios: Sequence[float], head_ratios: Sequence[float]
) -> Figure:
    figure, axes = pyplot.subplots(1, 3, figsize=(12.5, 1.5 + 0.55 * len(head_ratios)), layout="constrained")
    for axis, grid, title in zip(axes, maps, titles, strict=True):
        signed = title is titles[-1]
        _draw(axis, grid, signed=signed)
        axis.set_title(title, fontsize=10)
        axis.set_xticks(range(len(width_ratios)), [f"{ratio:g}" for ratio in width_ratios])
        axis.set_yticks(range(len(head_ratios)), [f"{ratio:g}" for ratio in head_ratios])
        axis.set_xlabel("width / layers")
        best = optimum(grid, width_ratios, head_ratios)
        if best is not None and not signed:
            place = (list(width_ratios).index(best.width_ratio), list(head_ratios).index(best.head_ratio))
            axis.add_patch(Rectangle((place[0] - HALF, place[1] - HALF), 1, 1, fill=False, color="red", lw=2))
    axes[0].set_ylabel("heads / layers")
    return figure


def _draw(axis: Axes, grid: Grid, *, signed: bool) -> None:
    values = np.array([[np.nan if value is None else value for value in row] for row in grid])
    if signed:
        reach = float(np.nanmax(np.abs(values), initial=1e-9))
        image = axis.imshow(values, cmap="RdBu_r", vmin=-reach, vmax=reach, origin="lower", aspect="auto")
    else:
        image = axis.imshow(values, cmap="viridis", origin="lower", aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if not np.isnan(value):
            red, green, blue, _ = image.cmap(image.norm(value))
            dark = 0.3 * red + 0.59 * green + 0.11 * blue < HALF
            text = f"{value:+.3f}" if signed else f"{value:.3f}"
            axis.text(column, row, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
