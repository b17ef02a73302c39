"""The report of a sweep: heat maps of loss over shapes, and where each residual stream has its best one."""

from pathlib import Path

from attention_residuals.experiments.document import Figure, Heading, Paragraph, Part, Table, write_document
from attention_residuals.experiments.report import sentence
from attention_residuals.experiments.studies.contest import Contest
from attention_residuals.experiments.studies.parts import (
    ONE_SEED,
    downstream_parts,
    interval_note,
    losses_parts,
    number,
    one_seed,
    settings_parts,
    signed,
    state_parts,
    text_parts,
    training_parts,
    tuning_parts,
)
from attention_residuals.experiments.sweep import paper
from attention_residuals.experiments.sweep.analysis import Optimum, SweepResults, optimum, read_sweep
from attention_residuals.experiments.sweep.figures import draw_sweep

NOTE = (
    "All cells have about as many parameters in their sublayers and the same compute, so tokens differ a little. One "
    "learning rate, found on the baseline in the middle cell, serves them all, which favours the middle. The frame is "
    "the lowest mean loss; neighbours within the noise of seeds are as good. The paper does not say which of its "
    "variants its figure shows (arXiv 2603.15031, Figure 7); its depths and widths are several times ours, so compare "
    "the direction of a shift, not places."
)


def write_report(folder: Path) -> Path:
    """Draw the figures of the sweep in `folder` and write `report.html` and `report.md`; the path of the page."""
    sweep = read_sweep(folder)
    figures = draw_sweep(sweep, folder / "figures")
    return write_document(folder, "Depth against width and heads", parts_of(sweep, figures))


def parts_of(sweep: SweepResults, figures: dict[str, Path]) -> list[Part]:
    """The report's parts, top to bottom."""
    study, contests = sweep.study, [contest for row in sweep.contests for contest in row]
    parts: list[Part] = [*_verdict(sweep), *state_parts(study), *training_parts(study), *text_parts(study)]
    parts.append(Heading("Loss by shape"))
    if "sweep" in figures:
        parts.append(Figure("figures/sweep.png", "losses of baseline and arm over shapes, and their difference"))
    parts += [_optima(sweep), Paragraph(NOTE, note=True), _cells(sweep)]
    parts.append(interval_note([contest.difference(sweep.arms[1]) for contest in contests]))
    parts += [Heading("The paper's"), Figure("figures/paper.png", "the paper's losses over shapes")]
    parts += [*downstream_parts(study), Heading("Behind these numbers"), *tuning_parts(study)]
    labels = ("width_ratio", "head_ratio", "layers", "width", "heads", "arm", "seed")
    return [*parts, *losses_parts(study, labels), *settings_parts(study)]


def _verdict(sweep: SweepResults) -> list[Part]:
    arm = sweep.arms[1]
    better, surely, worse, compared = sweep.tally()
    if not compared:
        return [Paragraph("Nothing to compare yet.", strong=True)]
    text = f"{arm} has the lower mean loss in {better} of {compared} shapes; in the paper it has in all of 25."
    if one_seed([contest.difference(arm) for row in sweep.contests for contest in row]):
        return [Paragraph(text, strong=True), Paragraph(ONE_SEED)]
    parts: list[Part] = [
        Paragraph(f"{text} Beyond the noise of seeds it is better in {surely} and worse in {worse}.", strong=True)
    ]
    if (found := sweep.over_shapes()) is not None:
        parts.append(Paragraph(f"Over all shapes together, {sentence(found, arm, sweep.arms[0])}", strong=True))
    return parts


def _optima(sweep: SweepResults) -> Table:
    ours = [(arm, optimum(sweep.losses(arm), sweep.width_ratios, sweep.head_ratios)) for arm in sweep.arms]
    grids = (("paper: baseline", paper.BASELINE), ("paper: Attention Residuals", paper.ATTENTION_RESIDUALS))
    theirs = [(name, optimum(grid, paper.WIDTH_RATIOS, paper.HEAD_RATIOS)) for name, grid in grids]
    header = ("lowest loss of", "width / layers", "heads / layers", "loss", "where")
    return Table(header, [_optimum_row(name, found) for name, found in (*ours, *theirs) if found is not None])


def _optimum_row(name: str, found: Optimum) -> tuple[str, ...]:
    place = "inside the grid" if found.inside else "at the grid's edge, so the optimum may lie beyond"
    return (name, f"{found.width_ratio:g}", f"{found.head_ratio:g}", f"{found.loss:.4f}", place)


def _cells(sweep: SweepResults) -> Table:
    baseline, arm = sweep.arms
    header = ("width / layers, heads / layers", baseline, arm, "difference", "in words")
    rows = [
        _cell_row(f"{width:g}, {heads:g}", sweep.contests[row][column], arm)
        for row, heads in enumerate(sweep.head_ratios)
        for column, width in enumerate(sweep.width_ratios)
    ]
    return Table(header, rows, "Every shape as numbers")


def _cell_row(name: str, contest: Contest, arm: str) -> tuple[str, ...]:
    found = contest.difference(arm)
    words = "-" if found is None else sentence(found, arm, contest.baseline)
    return (name, number(contest.mean(contest.baseline)), number(contest.mean(arm)), signed(found), words)
