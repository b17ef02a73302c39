"""The figures of a comparison, drawn from its folders alone."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from attention_residuals.experiments.document import DOTS_PER_INCH
from attention_residuals.experiments.results import Comparison, Run

# Okabe and Ito's palette, which colour-blind readers can tell apart; the reference is black.
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
SMOOTHING_STEPS = 25
MOST_COLUMNS_WITH_NUMBERS = 10


def draw_all(comparison: Comparison, folder: Path) -> dict[str, Path]:
    """Draw every figure as PNG into `folder`; a figure that would have nothing to show is left out."""
    folder.mkdir(exist_ok=True)
    figures = {
        "loss": loss_curves(comparison),
        "difference": differences(comparison) if len(comparison.models) > 1 else None,
        "dynamics": dynamics(comparison),
        **{f"depth-{model}": depth_weights(comparison.runs[model, comparison.seeds[0]]) for model in comparison.models},
    }
    paths = {}
    for name, figure in figures.items():
        if figure is not None:
            paths[name] = folder / f"{name}.png"
            figure.savefig(paths[name], dpi=DOTS_PER_INCH)
            pyplot.close(figure)
    return paths


def loss_curves(comparison: Comparison) -> Figure:
    """Training loss (smoothed, thin) and validation loss (marked) against tokens and against the run's own seconds."""
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True, layout="constrained")
    lows: list[float] = []
    for axis, key, label in zip(axes, ("tokens", "seconds"), ("tokens", "seconds of training"), strict=True):
        for model, colour in zip(comparison.models, cycle(COLOURS), strict=False):
            for n, run in enumerate(comparison.of(model)):
                smooth = smoothed([step["loss"] for step in run.steps])
                lows.append(min(smooth))
                axis.plot([step[key] for step in run.steps], smooth, color=colour, linewidth=0.7, alpha=0.45)
                curve = run.validation_curve
                axis.plot(
                    [step[key] for step in curve],
                    [step["validation_loss"] for step in curve],
                    color=colour,
                    marker="o",
                    markersize=3.5,
                    linewidth=1.4,
                    label=model if n == 0 else None,
                )
        axis.set_xlabel(label)
        axis.grid(alpha=0.25)
    entropy = comparison.runs[comparison.reference, comparison.seeds[0]].config["data"]["unigram_entropy"]
    axes[0].axhline(entropy, color="grey", linestyle=":", linewidth=1)
    axes[0].annotate("unigram entropy", (1, entropy), xycoords=("axes fraction", "data"), ha="right", va="bottom")
    axes[0].set_ylabel("loss, nats a byte")
    axes[0].set_title("equal tokens")
    axes[1].set_title("equal time")
    finals = [run.final["validation_loss"] for run in comparison.runs.values()]
    axes[0].set_ylim(min(entropy, *lows) - 0.1, max(entropy + 0.15, *finals) + 0.1)
    axes[0].xaxis.set_major_formatter(EngFormatter())
    axes[0].legend(title="validation (thin: training)")
    return figure


def differences(comparison: Comparison) -> Figure:
    """Paired difference of final validation loss to the reference, with its interval and each seed."""
    others = comparison.models[1:]
    figure, axis = pyplot.subplots(figsize=(8, 1.4 + 0.55 * len(others)), layout="constrained")
    for row, (model, colour) in enumerate(zip(others, cycle(COLOURS[1:]), strict=False)):
        found = comparison.difference(model)
        axis.errorbar(found.mean, row, xerr=found.half_width, fmt="o", color=colour, capsize=4)
        if len(found.by_seed) > 1:
            axis.plot(found.by_seed, [row - 0.22] * len(found.by_seed), "|", color=colour, markersize=9)
    axis.axvline(0, color="black", linewidth=1)
    axis.set_yticks(range(len(others)), others)
    axis.set_ylim(len(others) - 0.5, -0.5)
    axis.set_xlabel(f"validation loss minus that of {comparison.reference}, nats a byte (left is better)")
    axis.grid(axis="x", alpha=0.25)
    return figure


def dynamics(comparison: Comparison) -> Figure:
    """Sizes of outputs and gradients along the depth."""
    panels = (
        ("output_rms", "RMS of each sublayer's output"),
        ("carried_rms", "RMS of the running sum it was added to"),
        ("output_gradient_norm", "gradient norm at each output"),
        ("parameter_gradient_norm", "gradient norm of each sublayer's parameters"),
    )
    figure, axes = pyplot.subplots(2, 2, figsize=(11, 6.6), sharex=True, layout="constrained")
    for axis, (key, title) in zip(axes.flat, panels, strict=True):
        for model, colour in zip(comparison.models, cycle(COLOURS), strict=False):
            values = comparison.runs[model, comparison.seeds[0]].probe[key]
            axis.plot(range(1, len(values) + 1), values, color=colour, marker=".", linewidth=1.2, label=model)
        axis.set_yscale("log")
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.25, which="both")
    for axis in axes[1]:
        axis.set_xlabel("sublayer (odd: attention, even: MLP)")
    axes[0, 0].legend()
    return figure


def depth_weights(run: Run) -> Figure | None:
    """The depth weights of a run's probe; None for a stream without."""
    weights = run.probe["depth_weights"]
    return weight_maps(run.name, weights, run.probe["source_names"]) if weights else None


def weight_maps(name: str, weights: Sequence[Sequence[float]], sources: Sequence[str]) -> Figure:
    """Mean depth weights of every read: pre-attention and pre-MLP apart, the output read (the last) under both."""
    *reads, output = weights
    size = (max(7.0, 2 * (2.0 + 0.17 * len(sources))), 2.4 + 0.26 * (len(reads) // 2 + 1))
    rows = (len(reads) // 2, 1)
    figure, axes = pyplot.subplots(2, 2, figsize=size, layout="constrained", height_ratios=rows, sharex=True)
    image = None
    for column, title in enumerate(("pre-attention", "pre-MLP")):
        layers = reads[column::2]
        image = _heat_map(axes[0, column], layers, len(sources))
        axes[0, column].set_title(f"{name}: {title} reads")
        axes[0, column].set_ylabel("layer")
        axes[0, column].set_yticks(range(len(layers)), range(1, len(layers) + 1))
        _heat_map(axes[1, column], [output], len(sources))
        axes[1, column].set_yticks([0], ["head"])
        axes[1, column].set_xticks(range(len(sources)), sources, rotation=90)
    assert image is not None
    figure.colorbar(image, ax=axes, label="mean weight", shrink=0.8)
    return figure


def _heat_map(axis: Axes, rows: Sequence[Sequence[float]], columns: int):
    padded = [[*row, *[float("nan")] * (columns - len(row))] for row in rows]
    # Square-root colours: with two dozen sources most weights are small, and differences among them are the point.
    image = axis.imshow(padded, norm=PowerNorm(0.5, vmin=0, vmax=1), cmap="viridis", aspect="auto")
    if columns <= MOST_COLUMNS_WITH_NUMBERS:
        for y, row in enumerate(rows):
            for x, weight in enumerate(row):
                colour = "white" if weight < 0.4 else "black"
                axis.text(x, y, f"{weight:.2f}".lstrip("0"), ha="center", va="center", color=colour, fontsize=6.5)
    return image


def smoothed(values: Sequence[float]) -> list[float]:
    """Mean of each value and those before it, up to `SMOOTHING_STEPS` of them."""
    return [
        sum(window) / len(window)
        for n in range(1, len(values) + 1)
        for window in [values[max(0, n - SMOOTHING_STEPS) : n]]
    ]
