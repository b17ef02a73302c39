"""The figures of a ladder, drawn from its folders alone."""

from itertools import cycle
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import numpy as np
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

from attention_residuals.experiments.document import DOTS_PER_INCH
from attention_residuals.experiments.figures import COLOURS
from attention_residuals.experiments.ladder.analysis import LadderResults

SPREAD = 0.02
"""How far apart, in decades of compute, arms of one size are drawn."""


def draw_ladder(ladder: LadderResults, folder: Path) -> dict[str, Path]:
    """Draw every figure as PNG into `folder`; a figure that would have nothing to show is left out."""
    folder.mkdir(exist_ok=True)
    figures = {"scaling": scaling_figure(ladder), "differences": differences_figure(ladder)}
    paths = {}
    for name, figure in figures.items():
        if figure is not None:
            paths[name] = folder / f"{name}.png"
            figure.savefig(paths[name], dpi=DOTS_PER_INCH)
            pyplot.close(figure)
    return paths


def scaling_figure(ladder: LadderResults) -> Figure | None:
    """Loss against compute on logarithmic axes: a point a run, a line a fit."""
    shown = [(arm, size) for arm in ladder.arms for size in ladder.sizes if ladder.contest(size).mean(arm) is not None]
    if not shown:
        return None
    figure, axis = pyplot.subplots(figsize=(8.4, 5.2), layout="constrained")
    for arm, colour in zip(ladder.arms, cycle(COLOURS), strict=False):
        _draw_arm(axis, ladder, arm, colour)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(MaxNLocator(8))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.2f}"))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("C, floating-point operations of the baseline's training")
    axis.set_ylabel("final validation loss, nats a byte")
    axis.grid(alpha=0.25, which="both")
    axis.legend(title=r"points: seeds; lines: $L = A\,C^{-\alpha}$")
    return figure


def _draw_arm(axis: Axes, ladder: LadderResults, arm: str, colour: str) -> None:
    shift = 10 ** (SPREAD * (ladder.arms.index(arm) - (len(ladder.arms) - 1) / 2))
    points = [
        (size.compute * shift, run.loss) for size in ladder.sizes for run in ladder.contest(size).runs[arm] if run.sound
    ]
    found = ladder.scaling(arm)
    label = arm if found is None else rf"{arm}: $\alpha$ = {found.law.exponent:.4f}"
    if points:
        axis.plot(*zip(*points, strict=True), "o", color=colour, markersize=4.5, alpha=0.75, label=label)
    if found is not None:
        ends = [size.compute for size in (ladder.sizes[0], ladder.sizes[-1])]
        compute = np.geomspace(ends[0] / 1.3, ends[1] * 1.3, 100)
        axis.plot(compute, [found.law.loss(value) for value in compute], color=colour, linewidth=1.2)


def differences_figure(ladder: LadderResults) -> Figure | None:
    """Paired difference to the baseline at each size, with its interval and each seed."""
    found = {
        (arm, n): difference
        for arm in ladder.arms[1:]
        for n, size in enumerate(ladder.sizes)
        if (difference := ladder.contest(size).difference(arm)) is not None
    }
    if not found:
        return None
    figure, axis = pyplot.subplots(figsize=(8.4, 4.2), layout="constrained")
    for place, (arm, colour) in enumerate(zip(ladder.arms[1:], cycle(COLOURS[1:]), strict=False)):
        shift = 0.16 * (place - (len(ladder.arms) - 2) / 2)
        mine = {n: value for (name, n), value in found.items() if name == arm}
        centres = [n + shift for n in mine]
        means, halves = zip(*((value.mean, value.half_width) for value in mine.values()), strict=True)
        axis.errorbar(centres, means, yerr=halves, fmt="o", color=colour, capsize=4, label=arm)
        for centre, value in zip(centres, mine.values(), strict=True):
            if len(value.by_seed) > 1:
                axis.plot([centre + 0.05] * len(value.by_seed), value.by_seed, "_", color=colour, markersize=8)
    axis.axhline(0, color="black", linewidth=1)
    names = [f"{size.layers} x {size.model['width']}\n{size.matrix_parameters / 1e6:.3g} M" for size in ladder.sizes]
    axis.set_xticks(range(len(names)), names)
    axis.set_xlim(-0.6, len(names) - 0.4)
    axis.set_xlabel("layers x width, parameters that multiply every token")
    axis.set_ylabel(f"loss minus that of {ladder.baseline}, nats a byte")
    axis.set_title("below the line is better; bars: 95 % over paired seeds", fontsize=10)
    axis.grid(axis="y", alpha=0.25)
    axis.legend()
    return figure
