"""The figures of a tuning study, from its files alone."""

import statistics
from itertools import cycle
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

from attention_residuals.experiments.document import DOTS_PER_INCH
from attention_residuals.experiments.figures import COLOURS
from attention_residuals.experiments.tuning.findings import REFERENCE, TuningResults, rates_told

CURVES, DIFFERENCES, RATES = "curves.png", "differences.png", "rates.png"


def draw_all(results: TuningResults, folder: Path) -> list[str]:
    """Draw every figure into `folder`; their file names."""
    figures: dict[str, Figure] = {CURVES: curves(results), RATES: rates(results)}
    if len(results.chosen) > 1 and REFERENCE in results.chosen:
        figures[DIFFERENCES] = differences(results)
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=DOTS_PER_INCH)
        pyplot.close(figure)
    return list(figures)


def curves(results: TuningResults) -> Figure:
    """Validation loss minus that of the original against steps: mean over seeds, and each seed thin."""
    figure, axis = pyplot.subplots(figsize=(8.6, 5.8), layout="constrained")
    for (arm, runs), colour in zip(results.chosen.items(), cycle(COLOURS), strict=False):
        steps, rows = [step for step, _ in runs[0]["curve"]], []
        for run in runs:
            losses = [loss for _, loss in run["curve"]]
            rows.append([loss - losses[0] for loss in losses])
            axis.plot(steps, rows[-1], color=colour, linewidth=0.6, alpha=0.4)
        mean = [statistics.fmean(values) for values in zip(*rows, strict=True)]
        label = f"{arm} ({runs[0]['parameters']:,} parameters; {rates_told(runs[0]['rates'])})"
        axis.plot(steps, mean, color=colour, marker="o", markersize=3.5, linewidth=1.4, label=label)
    axis.axhline(0, color="grey", linestyle=":", linewidth=1)
    axis.annotate("original", (1, 0), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="grey")
    axis.set_xlabel("steps")
    axis.set_ylabel("validation loss minus that before, nats a token")
    axis.grid(alpha=0.25)
    figure.legend(fontsize=8, loc="outside lower center", ncols=1 if len(results.chosen) < 5 else 2)
    return figure


def differences(results: TuningResults) -> Figure:
    """Paired difference of the final loss to that of queries alone, with its interval and each seed."""
    others = [arm for arm in results.chosen if arm != REFERENCE]
    figure, axis = pyplot.subplots(figsize=(8, 1.4 + 0.5 * len(others)), layout="constrained")
    for row, arm in enumerate(others):
        found = results.difference(arm)
        colour = COLOURS[list(results.chosen).index(arm) % len(COLOURS)]
        width = found.half_width if found.half_width < float("inf") else 0.0
        axis.errorbar(found.mean, row, xerr=width, fmt="o", color=colour, capsize=4)
        if len(found.by_seed) > 1:
            axis.plot(found.by_seed, [row - 0.22] * len(found.by_seed), "|", color=colour, markersize=9)
    axis.axvline(0, color="black", linewidth=1)
    axis.set_yticks(range(len(others)), others)
    axis.set_ylim(len(others) - 0.5, -0.5)
    axis.set_xlabel(f"final validation loss minus that of {REFERENCE}, nats a token (left is better)")
    axis.grid(axis="x", alpha=0.25)
    return figure


def rates(results: TuningResults) -> Figure:
    """Final loss minus that before, of every rate that was tried on the first seed.

    Rates that ruined a model leave the axis at the top, as far above zero as the best lies below.
    """
    figure, axis = pyplot.subplots(figsize=(7.4, 4.2), layout="constrained")
    best, worst = 0.0, 0.0
    for (arm, runs), colour in zip(results.tried.items(), cycle(COLOURS), strict=False):
        whole = [run for run in runs if run["after"] is not None]
        middle = results.chosen[arm][0]["x"]
        gains = [run["after"] - run["before"] for run in whole]
        best, worst = min([best, *gains]), max([worst, *gains])
        axis.plot([run["x"] / middle for run in whole], gains, "o-", color=colour, linewidth=1.2, label=arm)
    axis.set_xscale("log")
    axis.set_ylim(1.1 * best or None, 1.1 * min(worst, -best) or None)
    axis.axhline(0, color="grey", linestyle=":", linewidth=1)
    axis.set_xlabel("rate over the one chosen")
    axis.set_ylabel("final loss minus that before, first seed")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8)
    return figure
