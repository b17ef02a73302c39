"""The figures of a depth report."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm, SymLogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from attention_residuals.experiments.arm_runs import Arms
from attention_residuals.experiments.depth.findings import Rows, answer, masked_pairs, rank_correlation, read_name
from attention_residuals.experiments.document import DOTS_PER_INCH
from attention_residuals.experiments.figures import COLOURS, weight_maps

SMALLEST_EFFECT = 1e-3
"""Nats a token; colours are linear below it and logarithmic above."""
MOST_LABELS = 30
PANELS_IN_A_ROW = 3


def draw_all(arms: Arms, folder: Path) -> list[str]:
    """Draw every figure into `folder`; their file names."""
    figures: dict[str, Figure | None] = {"mixing": mixing(arms)}
    for arm in arms.names:
        found = answer(arms.first(arm))
        if found["reads"] is not None:
            figures[f"weights-{arm}"] = weight_maps(arm, found["reads"]["weights"], found["sources"])
        if found["masking"] is not None:
            figures[f"masking-{arm}"] = masking(arm, found)
    names = []
    for name, figure in figures.items():
        if figure is not None:
            figure.savefig(folder / f"{name}.png", dpi=DOTS_PER_INCH)
            pyplot.close(figure)
            names.append(f"{name}.png")
    return names


def mixing(arms: Arms) -> Figure | None:
    """The mean depth mixing matrix of every arm that has one, as the paper's Figure 9."""
    found = {arm: matrix for arm in arms.names if (matrix := answer(arms.first(arm))["mixing"]) is not None}
    if not found:
        return None
    columns = min(PANELS_IN_A_ROW, len(found))
    rows = math.ceil(len(found) / columns)
    size = (3.9 * columns + 0.4, 3.5 * rows + 0.2)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[len(found) :]:
        axis.axis("off")
    for axis, (arm, matrix) in zip(axes.flat, found.items(), strict=False):
        # The sizes of terms: a few schemes may subtract.
        lower = [[abs(value) for value in row[: n + 1]] for n, row in enumerate(matrix)]
        image = axis.imshow(padded(lower, len(matrix)), norm=PowerNorm(0.5, vmin=0), cmap="viridis", aspect="equal")
        axis.set_title(arm, fontsize=10)
        axis.set_xlabel("source (0: embedding)")
        axis.set_ylabel("read")
        figure.colorbar(image, ax=axis, shrink=0.8)
    return figure


def masking(arm: str, found: dict[str, Any]) -> Figure:
    """Weight and effect of every source in every read, one against the other; below, each source masked in all."""
    seen, sources = found["masking"], found["sources"]
    reads, count = len(seen["effects"]), len(sources)
    width = 4.0 + min(0.17 * count, 8.0)
    figure = pyplot.figure(figsize=(2 * width + 4.2, 1.6 + 0.17 * reads + 1.2), layout="constrained")
    grid = figure.add_gridspec(2, 3, width_ratios=(width, width, 4.2), height_ratios=(max(reads, 8), 2))
    weight, effect, scatter = (figure.add_subplot(grid[0, n]) for n in range(3))
    everywhere = figure.add_subplot(grid[1, 1], sharex=effect)
    image = weight.imshow(
        padded([[abs(value) for value in row] for row in seen["weights"]], count),
        norm=PowerNorm(0.5, vmin=0),
        cmap="viridis",
        aspect="auto",
    )
    figure.colorbar(image, ax=weight, shrink=0.8)
    weight.set_title(f"{arm}: mean weight", fontsize=10)
    effects = [[math.nan if value is None else value for value in row] for row in seen["effects"]]
    in_all = [math.nan if value is None else value for value in seen["everywhere"]]
    largest = max((abs(v) for row in [*effects, in_all] for v in row if not math.isnan(v)), default=SMALLEST_EFFECT)
    norm = SymLogNorm(SMALLEST_EFFECT, vmin=-max(largest, SMALLEST_EFFECT), vmax=max(largest, SMALLEST_EFFECT))
    image = effect.imshow(padded(effects, count), norm=norm, cmap="RdBu_r", aspect="auto")
    effect.set_title("loss when masked there, minus loss", fontsize=10)
    everywhere.imshow([in_all], norm=norm, cmap="RdBu_r", aspect="auto")
    figure.colorbar(image, ax=[effect, everywhere], shrink=0.8, label="nats a token")
    names = found.get("read_names") or [read_name(read, reads) for read in range(reads)]
    for axis in (weight, effect):
        label_reads(axis, names)
    effect.tick_params(labelbottom=False)
    everywhere.set_yticks([0], ["in all reads"])
    for axis in (weight, everywhere):
        label_sources(axis, sources)
    _scatter(scatter, seen)
    return figure


def _scatter(axis: Axes, seen: dict[str, Any]) -> None:
    for key, colour, word in (("weights", COLOURS[1], "weight"), ("shares", COLOURS[2], "share of mixture")):
        pairs = masked_pairs(seen, key)
        correlation = rank_correlation(pairs)
        label = word if correlation is None else f"{word}: rank correlation {correlation:+.2f}"
        values, effects = zip(*pairs, strict=True) if pairs else ((), ())
        axis.plot([abs(value) for value in values], effects, ".", color=colour, alpha=0.55, markersize=4, label=label)
    axis.set_xscale("log")
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_yscale("symlog", linthresh=SMALLEST_EFFECT)
    axis.margins(y=0.12)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.set_xlabel("weight, or share of the mixture")
    axis.set_ylabel("effect of masking, nats a token")
    axis.grid(alpha=0.25)
    axis.legend(fontsize=8, loc="lower right")


def label_reads(axis: Axes, names: Sequence[str]) -> None:
    """Write the names of reads beside the rows of a map, as many as there is room for."""
    step = math.ceil(len(names) / MOST_LABELS)
    shown = [*range(0, len(names) - 1, step), len(names) - 1]
    axis.set_yticks(shown, [names[read] for read in shown], fontsize=6.5)


def label_sources(axis: Axes, sources: Sequence[str]) -> None:
    """Write the names of sources under the columns of a map, as many as there is room for."""
    step = math.ceil(len(sources) / MOST_LABELS)
    shown = range(0, len(sources), step)
    axis.set_xticks(shown, [sources[n] for n in shown], rotation=90, fontsize=6.5)


def padded(rows: Rows, columns: int) -> list[list[float]]:
    """Rows of one length, for an image."""
    return [[*row, *[math.nan] * (columns - len(row))] for row in rows]
