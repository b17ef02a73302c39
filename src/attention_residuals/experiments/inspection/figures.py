"""The figures of an inspection, from its JSON alone."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from attention_residuals.experiments.depth.figures import label_reads, label_sources, masking, padded
from attention_residuals.experiments.document import DOTS_PER_INCH
from attention_residuals.experiments.figures import COLOURS

WEIGHTS, MASKING = "weights.png", "masking.png"

LEAST_RANGE = 0.05
"""Of the colours, in doublings: weights nearer to equal than this look equal."""

MOST_DOUBLINGS = 6.0
"""Less weight than this below an equal share is shown as this."""


def draw_all(found: Mapping[str, Any], folder: Path) -> list[str]:
    """Draw every figure into `folder`; their file names."""
    figures = {WEIGHTS: weights(found)}
    if found["masking"] is not None:
        figures[MASKING] = masking(found["architecture"], dict(found))
    for name, figure in figures.items():
        figure.savefig(folder / name, dpi=DOTS_PER_INCH)
        pyplot.close(figure)
    return list(figures)


def weights(found: Mapping[str, Any]) -> Figure:
    """Mean weight against equal shares of every read, and how far from equal it is along the depth.

    A converted model starts with equal weights, so the weight times the number of sources is what has changed.
    """
    rows, sources, names = found["reads"]["weights"], found["sources"], found["read_names"]
    size = (5.2 + min(0.22 * len(sources), 8.0) + 2.6, 1.6 + 0.13 * max(len(rows), 12))
    figure, (mean, entropy) = pyplot.subplots(
        1, 2, figsize=size, layout="constrained", width_ratios=(3, 1), sharey=True
    )
    doublings = [[_doublings(value * len(row)) for value in row] for row in rows]
    most = max(LEAST_RANGE, *(abs(value) for row in doublings for value in row))
    image = mean.imshow(padded(doublings, len(sources)), vmin=-most, vmax=most, cmap="RdBu_r", aspect="auto")
    mean.set_facecolor("lightgrey")
    figure.colorbar(image, ax=mean, shrink=0.8, label="log2 of weight x sources\n(0: equal)")
    mean.set_title(f"{found['architecture']}: depth weights", fontsize=10)
    label_reads(mean, names)
    label_sources(mean, sources)
    shares = found["reads"]["entropy_shares"]
    entropy.plot(shares, range(len(shares)), ".-", color=COLOURS[1], linewidth=1)
    entropy.set_xlim(min(0.99, min(shares) - 0.002), 1.001)
    entropy.set_xlabel("entropy / that of equal weights", fontsize=8)
    entropy.xaxis.set_major_locator(MaxNLocator(3))
    entropy.grid(alpha=0.25)
    return figure


def _doublings(share: float) -> float:
    return max(-MOST_DOUBLINGS, math.log2(share)) if share > 0 else -MOST_DOUBLINGS
