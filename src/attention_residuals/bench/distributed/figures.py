"""The figure of `simulation`, drawn from its tables alone."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from attention_residuals.bench.results import Table, Value

# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = {"naive": "#D55E00", "cached": "#0072B2", "standard": "#7F7F7F"}
STYLES = ("-", "--", ":", "-.")
DOTS_PER_INCH = 160

Rows = Sequence[dict[str, Value]]


def draw_exposed(table: Table, path: Path) -> None:
    """The exposed share of transport against the number of ranks, a panel for each number of chunks."""
    chunks = list(dict.fromkeys(row["chunks"] for row in table.rows))
    speeds = list(dict.fromkeys(row["gigabytes"] for row in table.rows))
    figure, axes = pyplot.subplots(
        1, len(chunks), figsize=(5 * len(chunks), 4), sharey=True, layout="constrained", squeeze=False
    )
    for axis, count in zip(axes[0], chunks, strict=True):
        for (kind, colour), (speed, style) in (
            (one, two) for one in COLOURS.items() for two in zip(speeds, STYLES, strict=False)
        ):
            rows = [row for row in table.rows if row["chunks"] == count and row["gigabytes"] == speed]
            shares = [100 * float(row[f"{kind}_exposed"] or 0) for row in rows]
            label = f"{kind}, {speed:g} GB/s"
            axis.plot(
                [row["ranks"] for row in rows], shares, style, color=colour, marker="o", markersize=4, label=label
            )
        axis.set_title(f"V = {count}")
        axis.set_xscale("log", base=2)
        ranks = list(dict.fromkeys(row["ranks"] for row in table.rows))
        axis.set_xticks(ranks, [str(one) for one in ranks])
        axis.set_xlabel("ranks P")
        axis.grid(alpha=0.25)
    axes[0][0].set_ylabel("exposed transport, % of the step")
    axes[0][0].set_ylim(bottom=0)  # of all panels, now that every line is there
    axes[0][0].legend(fontsize=8, handlelength=3.5)
    figure.suptitle(f"simulated: {table.title}", fontsize=10)
    figure.savefig(path, dpi=DOTS_PER_INCH)
    pyplot.close(figure)
