"""The figures of an inspection, from its JSON alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from attention_residuals.experiments.depth.figures import label_reads, label_sources, masking, padded
from attention_residuals.experiments.document import DOTS_PER_INCH
from attention_residuals.experiments.figures import COLOURS

WEIGHTS, MASKING = "weights.png", "masking.png"


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
    """Mean weight over equal shares of every read, and how far from equal it is along the depth.

    A converted model starts with equal weights, so the weight times the number of sources is what has changed.
    """
    rows, sources, names = found["reads"]["weights"], found["sources"], found["read_names"]
    size = (5.2 + min(0.22 * len(sources), 8.0) + 2.6, 1.6 + 0.16 * max(len(rows), 10))
    figure, (mean, entropy) = pyplot.subplots(
        1, 2, figsize=size, layout="constrained", width_ratios=(3, 1), sharey=True
    )
    over_equal = [[value * len(row) for value in row] for row in rows]
    largest = max(2.0, *(value for row in over_equal for value in row))
    image = mean.imshow(
        padded(over_equal, len(sources)), norm=PowerNorm(0.5, vmin=0, vmax=largest), cmap="viridis", aspect="auto"
    )
    figure.colorbar(image, ax=mean, shrink=0.8, label="weight x number of sources (1: equal)")
    mean.set_title(f"{found['architecture']}: depth weights", fontsize=10)
    label_reads(mean, names)
    label_sources(mean, sources)
    shares = found["reads"]["entropy_shares"]
    entropy.plot(shares, range(len(shares)), ".-", color=COLOURS[1], linewidth=1)
    entropy.set_xlim(min(0.9, min(shares) - 0.02), 1.005)
    entropy.set_xlabel("entropy / that of equal weights", fontsize=8)
    entropy.grid(alpha=0.25)
    return figure
