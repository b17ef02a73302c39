"""The figures of an ablation, drawn from its folders alone."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import ScalarFormatter

from attention_residuals.experiments.ablation import paper
from attention_residuals.experiments.document import DOTS_PER_INCH
from attention_residuals.experiments.figures import COLOURS
from attention_residuals.experiments.studies.contest import Contest

OURS, THEIRS = COLOURS[1], COLOURS[2]


def draw_ablation(contest: Contest, streams: Mapping[str, str], sublayers: int, folder: Path) -> dict[str, Path]:
    """Draw every figure as PNG into `folder`; one that would have nothing to show is left out.

    Args:
        contest: all arms.
        streams: what each arm stands for at this size.
        sublayers: of the network.
        folder: made if need be.
    """
    folder.mkdir(exist_ok=True)
    figures = {
        "variants": variants_figure(contest, streams, sublayers),
        "block-size": block_figure(contest, streams, sublayers),
    }
    paths = {}
    for name, figure in figures.items():
        if figure is not None:
            paths[name] = folder / f"{name}.png"
            figure.savefig(paths[name], dpi=DOTS_PER_INCH)
            pyplot.close(figure)
    return paths


def variants_figure(contest: Contest, streams: Mapping[str, str], sublayers: int) -> Figure | None:
    """Paired differences to the baseline, best on top, with intervals and seeds, and the paper's beside them."""
    arms = [arm for arm in contest.ranking() if arm != contest.baseline]
    if not arms:
        return None
    figure, axis = pyplot.subplots(figsize=(8.4, 1.4 + 0.36 * len(arms)), layout="constrained")
    for row, arm in enumerate(arms):
        found = contest.difference(arm)
        assert found is not None
        axis.errorbar(found.mean, row, xerr=found.half_width, fmt="o", color=OURS, capsize=3, label=_once("ours", row))
        if len(found.by_seed) > 1:
            axis.plot(found.by_seed, [row + 0.25] * len(found.by_seed), "|", color=OURS, markersize=6)
        theirs = paper.loss(streams[arm], sublayers)
        if theirs is not None:
            axis.plot(theirs - paper.BASELINE, row, "D", color=THEIRS, markersize=5, markerfacecolor="none")
    axis.plot([], [], "D", color=THEIRS, markersize=5, markerfacecolor="none", label="paper, 436 M parameters")
    axis.axvline(0, color="black", linewidth=1)
    axis.set_yticks(range(len(arms)), arms)
    axis.set_ylim(len(arms) - 0.4, -0.6)
    axis.set_xlabel(f"loss minus that of {contest.baseline}, nats (left is better; bars: 95 % over seeds)")
    axis.grid(axis="x", alpha=0.25)
    axis.legend()
    return figure


def block_figure(contest: Contest, streams: Mapping[str, str], sublayers: int) -> Figure | None:
    """Loss against sublayers a block, the baseline as a line: ours, and the paper's Figure 6."""
    sizes = {
        size: arm
        for arm in contest.arms
        if (size := paper.block_size(streams[arm])) is not None and contest.mean(arm) is not None
    }
    if len(sizes) < 2:
        return None
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    ours = {size: contest.mean(arm) for size, arm in sorted(sizes.items())}
    _draw_sizes(axes[0], ours, OURS, f"here: {sublayers} sublayers")
    for size, arm in sizes.items():
        losses = [run.loss for run in contest.sound(arm)]
        axes[0].plot([size] * len(losses), losses, "_", color=OURS, markersize=9, alpha=0.6)
    baseline = [run.loss for run in contest.sound(contest.baseline)]
    if baseline:
        axes[0].axhline(sum(baseline) / len(baseline), color="black", linewidth=1.2, label=contest.baseline)
        axes[0].axhspan(min(baseline), max(baseline), color="black", alpha=0.08)
    _draw_sizes(axes[1], paper.BLOCKS, THEIRS, "paper: 32 sublayers, 436 M parameters")
    axes[1].axhline(paper.BASELINE, color="black", linewidth=1.2, label="standard")
    axes[0].set_ylabel("final validation loss, nats a byte")
    axes[1].set_ylabel("validation loss, nats a token")
    for axis in axes:
        axis.legend()
    return figure


def _draw_sizes(axis: Axes, losses: Mapping[int, float | None], colour: str, title: str) -> None:
    axis.plot(list(losses), [loss for loss in losses.values() if loss is not None], "o-", color=colour, label="Block")
    axis.set_xscale("log", base=2)
    axis.set_xticks(list(losses))
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.set_xlabel("sublayers a block (1: Full)")
    axis.set_title(title, fontsize=10)
    axis.grid(alpha=0.25)


def _once(label: str, row: int) -> str | None:
    return label if row == 0 else None
