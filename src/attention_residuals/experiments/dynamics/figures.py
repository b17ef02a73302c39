"""The figures of a dynamics study."""

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from attention_residuals.experiments.arm_runs import ArmRun, Arms
from attention_residuals.experiments.document import DOTS_PER_INCH
from attention_residuals.experiments.dynamics import paper
from attention_residuals.experiments.dynamics.findings import answer, block_size, gradient, magnitude
from attention_residuals.experiments.dynamics.shapes import after_layers
from attention_residuals.experiments.figures import COLOURS

LINEAR_DIFFERENCE = 0.03
"""Nats a token up to which the scale of differences is linear."""
PAPER_TITLE = "the paper's, 48 B parameters"


def draw_all(arms: Arms, folder: Path) -> list[str]:
    """Draw every figure into `folder`; their file names."""
    figures = {
        "loss": losses(arms),
        "magnitude": sizes(arms, "RMS of the running sum after each layer", magnitude, paper.MAGNITUDE, "output_rms"),
        "gradient": sizes(
            arms, "gradient norm of each layer's parameters", gradient, paper.GRADIENT, "output_gradient_norm"
        ),
        "dilution": dilutions(arms),
        "training": training(arms),
    }
    names = []
    for name, figure in figures.items():
        if figure is not None:
            figure.savefig(folder / f"{name}.png", dpi=DOTS_PER_INCH)
            pyplot.close(figure)
            names.append(f"{name}.png")
    return names


def losses(arms: Arms) -> Figure:
    """Validation loss against tokens, each seed a line; and the difference to the first arm, seed by seed."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.0), layout="constrained")
    reference = {run.seed: _by_tokens(run) for run in arms.of(arms.names[0])}
    for arm, colour in zip(arms.names, cycle(COLOURS), strict=False):
        for n, run in enumerate(arms.of(arm)):
            curve = _by_tokens(run)
            label = arm if n == 0 else None
            left.plot(list(curve), list(curve.values()), color=colour, marker=".", linewidth=1.1, label=label)
            base = reference.get(run.seed)
            if arm != arms.names[0] and base is not None:
                shared = [tokens for tokens in curve if tokens in base]
                gaps = [curve[tokens] - base[tokens] for tokens in shared]
                right.plot(shared, gaps, color=colour, marker=".", linewidth=1.1, label=label)
    left.set_ylabel("validation loss, nats a token")
    right.set_ylabel(f"that minus {arms.names[0]}'s, same seed")
    right.axhline(0, color="black", linewidth=1)
    right.set_yscale("symlog", linthresh=LINEAR_DIFFERENCE)  # a control may fail altogether
    finals = [loss for run in arms.runs if run.fault is None for loss in list(_by_tokens(run).values())[1:]]
    if finals:
        left.set_ylim(min(finals) - 0.05, max(finals) + 0.15)
    for axis in (left, right):
        axis.set_xlabel("training tokens")
        axis.xaxis.set_major_formatter(EngFormatter())
        axis.grid(alpha=0.25)
    left.legend()
    return figure


def sizes(
    arms: Arms,
    title: str,
    numbers: Callable[[ArmRun], Sequence[float]],
    theirs: Mapping[str, Sequence[float]],
    key: str,
) -> Figure:
    """Numbers of layers, the paper's beside them, and the numbers `key` of single sublayers."""
    figure, (ours, other, single) = pyplot.subplots(1, 3, figsize=(13, 4.0), layout="constrained")
    for arm, colour in zip(arms.names, cycle(COLOURS), strict=False):
        for n, run in enumerate(arms.of(arm)):
            style = {"color": colour, "marker": ".", "linewidth": 1.1, "label": arm if n == 0 else None}
            _line(ours, numbers(run), **style)
            _line(single, answer(run)[key], **style)
    for (name, values), colour in zip(theirs.items(), COLOURS, strict=False):
        _line(other, values, color=colour, marker=".", linewidth=1.1, label=f"{name}")
    _blocks(other, paper.BLOCK_LAYERS, len(paper.MAGNITUDE["block"]))
    _mark_blocks(arms, ours, single)
    labels = {"output_rms": "RMS of each sublayer's output", "output_gradient_norm": "gradient norm at each output"}
    for axis, text, place in (
        (ours, title, "layer"),
        (other, PAPER_TITLE, "layer"),
        (single, labels[key], "sublayer (odd: attention, even: MLP)"),
    ):
        axis.set_yscale("log")
        axis.set_title(text, fontsize=10)
        axis.set_xlabel(place)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.25, which="both")
        axis.legend(fontsize=8)
    return figure


def dilutions(arms: Arms) -> Figure:
    """How large outputs are against what their readers see."""
    panels = (
        ("dilution", "|f| / |h| at the sublayer itself"),
        ("next_share", "share of f at the next read"),
        ("head_share", "share of f at the head"),
    )
    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4.0), layout="constrained", sharex=True)
    for axis, (key, title) in zip(axes, panels, strict=True):
        for arm, colour in zip(arms.names, cycle(COLOURS), strict=False):
            for n, run in enumerate(arms.of(arm)):
                values = answer(run)[key]
                if values is not None:
                    _line(axis, values, color=colour, marker=".", linewidth=1.1, label=arm if n == 0 else None)
        axis.set_yscale("log")
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("sublayer (odd: attention, even: MLP)")
        axis.grid(alpha=0.25, which="both")
    figure.legend(*axes[0].get_legend_handles_labels(), fontsize=8, loc="outside right upper")
    return figure


def training(arms: Arms) -> Figure | None:
    """The running sum after each layer over the course of training, one panel an arm, first seed."""
    shown = [arm for arm in arms.names if arms.first(arm).probes()]
    if not shown:
        return None
    figure, axes = pyplot.subplots(
        1, len(shown), figsize=(3.3 * len(shown) + 1, 3.6), layout="constrained", sharey=True, squeeze=False
    )
    colours = matplotlib.colormaps["viridis"]
    last = 1
    for axis, arm in zip(axes[0], shown, strict=True):
        probes = arms.first(arm).probes()
        last = probes[-1]["step"]
        for found in probes:
            _line(axis, after_layers(found["carried_rms"]), color=colours(found["step"] / last), linewidth=1.1)
        axis.set_yscale("log")
        axis.set_title(arm, fontsize=10)
        axis.set_xlabel("layer")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.25, which="both")
    axes[0, 0].set_ylabel("RMS of the running sum")
    scale = ScalarMappable(Normalize(0, last), colours)
    figure.colorbar(scale, ax=axes, label="step")
    return figure


def _line(axis: Axes, values: Sequence[float], **style) -> None:
    axis.plot(range(1, len(values) + 1), values, **style)


def _mark_blocks(arms: Arms, layers: Axes, sublayers: Axes) -> None:
    """Thin lines where blocks end, if all arms with blocks have the same."""
    found = {block_size(arms.first(arm)) for arm in arms.names} - {None}
    if len(found) != 1:
        return
    (block,) = found
    count = len(answer(arms.first(arms.names[0]))["output_rms"])
    assert block is not None
    _blocks(sublayers, block, count)
    if block % 2 == 0:
        _blocks(layers, block // 2, count // 2)


def _blocks(axis: Axes, block: int, count: int) -> None:
    for end in range(block, count, block):
        axis.axvline(end + 0.5, color="grey", linestyle=":", linewidth=0.8)


def _by_tokens(run: ArmRun) -> dict[int, float]:
    return {step["tokens"]: step["validation_loss"] for step in run.curve}
