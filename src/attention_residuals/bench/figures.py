"""Figures of `depth` and `memory`, drawn from their tables alone."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.figure import Figure

from attention_residuals.bench.results import Half, Value

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = {"block": "#0072B2", "full": "#D55E00"}
DOTS_PER_INCH = 160

Rows = Sequence[dict[str, Value]]


def draw(benchmark: str, halves: Sequence[Half], folder: Path) -> list[Path]:
    """Draw what there is to draw of a benchmark, one PNG for each setting of the allocator."""
    if benchmark not in FIGURES:
        return []
    paths = []
    for half in halves:
        figure = FIGURES[benchmark](half.tables[0].rows)
        paths.append(folder / f"{benchmark}-{half.allocator}.png")
        figure.savefig(paths[-1], dpi=DOTS_PER_INCH)
        pyplot.close(figure)
    return paths


def depth(rows: Rows) -> Figure:
    """What a layer costs more than with the standard residual, with quartiles, against depth."""
    figure, axis = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for model, colour in COLOURS.items():
        points = [row for row in rows if row["model"] == model and "layer_seconds" in row]
        if not points:
            continue
        layers = _numbers(points, "layers")
        low, middle, high = (
            [1e3 * value for value in _numbers(points, f"layer_seconds{end}")] for end in ("_low", "", "_high")
        )
        axis.plot(layers, middle, color=colour, marker="o", label=model)
        axis.fill_between(layers, low, high, color=colour, alpha=0.2, linewidth=0)
    axis.set_xlabel("layers")
    axis.set_ylabel("more a layer than the standard residual, ms")
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    axis.grid(alpha=0.25)
    axis.legend()
    return figure


def memory(rows: Rows) -> Figure:
    """Memory above the standard residual against depth, without and with recomputation; dashed: the sources alone."""
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for axis, recompute in zip(axes, dict.fromkeys(row["recompute"] for row in rows), strict=False):
        for model, colour in COLOURS.items():
            points = [
                row for row in rows if row["model"] == model and row["recompute"] == recompute and "more_units" in row
            ]
            if points:
                layers = _numbers(points, "layers")
                axis.plot(layers, _numbers(points, "more_units"), color=colour, marker="o", label=model)
                sources = _numbers(points, "state_units")
                axis.plot(layers, sources, color=colour, linestyle="--", linewidth=1, label=f"{model}, sources alone")
        axis.set_title(f"recomputed: {recompute}")
        axis.set_xlabel("layers")
        axis.set_ylabel("more than the standard residual, U")
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.25)
        axis.legend()
    return figure


FIGURES: dict[str, Callable[[Rows], Figure]] = {"depth": depth, "memory": memory}


def _numbers(rows: Rows, key: str) -> list[float]:
    return [float(value) for row in rows if (value := row[key]) is not None]
