"""The figures of the study, drawn from its folders alone."""

import math
from itertools import cycle
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm
from matplotlib.figure import Figure

from attention_residuals.experiments.document import DOTS_PER_INCH
from attention_residuals.experiments.figures import COLOURS, MOST_COLUMNS_WITH_NUMBERS, smoothed
from attention_residuals.experiments.moe.analysis import KINDS, MixtureResults, loads, peaks
from attention_residuals.experiments.results import interval_half_width
from attention_residuals.experiments.studies.reading import StudyRun, sound_pairs

SPREAD = 0.14
"""How far an arm stands from the place of its network."""

DARK = 0.36
"""Colours of loads so far from the middle of their scale, which goes from 0 to 1, are dark."""


def draw_mixtures(results: MixtureResults, folder: Path) -> dict[str, Path]:
    """Draw every figure as PNG into `folder`; one that would have nothing to show is left out."""
    folder.mkdir(exist_ok=True)
    figures = {"losses": losses_figure(results), "peaks": peaks_figure(results), "loads": loads_figure(results)}
    paths = {}
    for name, figure in figures.items():
        if figure is not None:
            paths[name] = folder / f"{name}.png"
            figure.savefig(paths[name], dpi=DOTS_PER_INCH)
            pyplot.close(figure)
    return paths


def losses_figure(results: MixtureResults) -> Figure | None:
    """Losses of both arms in both networks, and what the arm changes in each, with intervals and every seed."""
    if not any(results.contest(kind).sound(arm) for kind in KINDS for arm in results.arms):
        return None
    figure, axes = pyplot.subplots(1, 2, figsize=(10.5, 4.4), layout="constrained")
    _draw_losses(axes[0], results)
    _draw_gains(axes[1], results)
    for axis in axes:
        axis.grid(axis="y", alpha=0.25)
    return figure


def _draw_losses(axis: Axes, results: MixtureResults) -> None:
    for place, kind in enumerate(KINDS):
        pairs = sound_pairs(*(results.runs(kind, arm) for arm in results.arms))
        for pair in zip(*pairs, strict=True):
            axis.plot([place - SPREAD, place + SPREAD], [run.loss for run in pair], color="grey", linewidth=0.7)
        for arm, shift, colour in zip(results.arms, (-SPREAD, SPREAD), COLOURS, strict=False):
            losses = [run.loss for run in results.contest(kind).sound(arm)]
            axis.plot([place + shift] * len(losses), losses, "_", color=colour, markersize=9)
            if losses:
                half = _drawn(interval_half_width(losses))
                mean = sum(losses) / len(losses)
                axis.errorbar(place + 1.6 * shift, mean, yerr=half, fmt="o", color=colour, capsize=4)
    for arm, colour in zip(results.arms, COLOURS, strict=False):
        axis.plot([], [], "o", color=colour, label=arm)
    axis.set_xticks(range(len(KINDS)), KINDS)
    axis.set_xlim(-0.6, len(KINDS) - 0.4)
    axis.set_ylabel("final validation loss, nats a byte")
    axis.set_title("dashes: seeds, tied in pairs; dots: means with 95 % over seeds", fontsize=10)
    axis.legend()


def _draw_gains(axis: Axes, results: MixtureResults) -> None:
    found = {kind: results.gain(kind) for kind in KINDS} | {"mixture - dense": results.interaction}
    for place, (difference, colour) in enumerate(zip(found.values(), (*COLOURS[1:3], COLOURS[0]), strict=True)):
        if difference is not None:
            half = _drawn(difference.half_width)
            axis.errorbar(place, difference.mean, yerr=half, fmt="o", color=colour, capsize=4)
            axis.plot([place + 0.12] * len(difference.by_seed), difference.by_seed, "_", color=colour, markersize=9)
    axis.axhline(0, color="black", linewidth=1)
    axis.set_xticks(range(len(found)), found)
    axis.set_xlim(-0.5, len(found) - 0.5)
    axis.set_ylabel(f"loss of {results.arm} minus {results.baseline}, nats a byte")
    axis.set_title("below 0: helps; the last: more in the mixture. Bars: 95 %", fontsize=10)


def peaks_figure(results: MixtureResults) -> Figure | None:
    """The largest load over the mean during each run with experts, in its worst layer."""
    shown = [run for run in results.mixtures if peaks(run)]
    if not shown:
        return None
    figure, axis = pyplot.subplots(figsize=(8.4, 4.2), layout="constrained")
    for arm, colour in zip(results.arms, cycle(COLOURS), strict=False):
        for n, run in enumerate(run for run in shown if run.labels["arm"] == arm):
            steps = [step["step"] for step in run.steps if "expert_peak" in step]
            axis.plot(steps, smoothed(peaks(run)), color=colour, linewidth=1, alpha=0.8, label=None if n else arm)
    axis.axhline(1, color="black", linewidth=1)
    axis.axhline(results.even_peak, color="grey", linestyle=":", linewidth=1, label="even routing, by chance")
    axis.set_ylim(bottom=0.95)
    axis.set_xlabel("step")
    axis.set_ylabel("largest load over the mean, worst layer")
    axis.set_title("a line a seed, means over 25 steps; 1: all experts of all layers have equal loads", fontsize=10)
    axis.grid(alpha=0.25)
    axis.legend()
    return figure


def loads_figure(results: MixtureResults) -> Figure | None:
    """Loads over their mean of every expert in every layer at the end of each run: arms in rows, seeds in columns."""
    probed = [run for run in results.mixtures if loads(run)]
    if not probed:
        return None
    arms = list(dict.fromkeys(run.labels["arm"] for run in probed))
    shown = {arm: [run for run in probed if run.labels["arm"] == arm] for arm in arms}
    columns = max(map(len, shown.values()))
    experts, layers = results.study.settings["experts"], results.study.settings["layers"]
    size = (1.2 + columns * (0.9 + 0.3 * experts), len(arms) * (0.9 + 0.24 * layers))
    figure, axes = pyplot.subplots(len(arms), columns, figsize=size, layout="constrained", squeeze=False)
    largest = max(load for run in probed for row in loads(run).values() for load in row)
    norm = TwoSlopeNorm(1, vmin=0, vmax=max(2.0, largest))
    images = [
        _draw_loads(axis, run, norm)
        for row, runs in zip(axes, shown.values(), strict=True)
        for axis, run in zip(row, runs, strict=False)
    ]
    for row, runs in zip(axes, shown.values(), strict=True):
        for axis in row[len(runs) :]:
            axis.set_axis_off()
    figure.colorbar(images[0], ax=axes, label="load over the mean", shrink=0.8)
    return figure


def _draw_loads(axis: Axes, run: StudyRun, norm: TwoSlopeNorm):
    found = sorted(loads(run).items())
    image = axis.imshow([row for _, row in found], norm=norm, cmap="RdBu_r", aspect="auto")
    columns = len(found[0][1])
    axis.set_title(f"{run.labels['arm']}, seed {run.labels['seed']}", fontsize=10)
    axis.set_xticks(range(columns), [str(n + 1) for n in range(columns)], fontsize=8)
    axis.set_yticks(range(len(found)), [str(layer) for layer, _ in found], fontsize=8)
    axis.set_xlabel("expert", fontsize=8)
    axis.set_ylabel("layer", fontsize=8)
    if columns <= MOST_COLUMNS_WITH_NUMBERS:
        for y, (_, row) in enumerate(found):
            for x, load in enumerate(row):
                colour = "white" if abs(float(norm(load)) - 0.5) > DARK else "black"
                axis.text(x, y, f"{load:.1f}", ha="center", va="center", color=colour, fontsize=6.5)
    return image


def _drawn(half: float) -> float:
    """Half an interval as the length of a bar: one seed has none."""
    return 0.0 if math.isinf(half) else half
