"""The report of a ladder: what depth attention is worth at each size, beside the paper's figures."""

import math
from pathlib import Path

from attention_residuals.experiments.compute import FORMULA
from attention_residuals.experiments.document import Figure, Heading, Paragraph, Part, Table, write_document
from attention_residuals.experiments.ladder.analysis import LadderResults, Size, read_ladder
from attention_residuals.experiments.ladder.figures import draw_ladder
from attention_residuals.experiments.report import sentence
from attention_residuals.experiments.results import Difference
from attention_residuals.experiments.statistics import Interval, Scaling
from attention_residuals.experiments.studies.parts import (
    downstream_parts,
    interval_note,
    losses_parts,
    number,
    settings_parts,
    signed,
    state_parts,
    text_parts,
    tuning_parts,
)

PAPER = {"standard": (1.891, 0.057), "block": (1.870, 0.058), "full": (1.865, 0.057)}
"""A and alpha of the paper's fits, C in PFLOP/s-days (arXiv 2603.15031, Table 2)."""

PAPER_ADVANTAGE = "1.25"
"""Block over the baseline at 5.6 PFLOP/s-days, from the paper's rounded fits."""

FIT_NOTE = (
    "Least squares of log L on log C, on the means over seeds, as the paper fits; no irreducible loss is fitted. C in "
    "units of 10^12 operations here and in PFLOP/s-days (8.64 x 10^19) in the paper, so A cannot be compared with "
    "theirs, nor the losses of different texts and tokens: exponents and advantages can. Compute advantage: how many "
    "times the arm's compute the baseline would need for the arm's loss at the largest size, by both fits; beside it "
    "the same as measured there: by the mean losses at that size, and of the fits the baseline's exponent alone. "
    "Where a law misses a mean by half of what lies between the arms at the largest size or more, the sentences above "
    "and the time advantage go by what was measured. Intervals: 95 %. Those of fits are a bootstrap over seeds, drawn "
    "within each size and the same for arm and baseline, widened to what so few seeds call for; that of the measured "
    "advantage is Student's. They hold the noise of seeds, not whether a power law is the right form; the last column "
    "says how far the means lie from it. Runs of one seed at different sizes are taken as independent."
)
TIME_NOTE = (
    "Median seconds of a step, of each arm over the baseline's run of the same seed; runs of other arms worked beside "
    "them on the same machine. Time advantage: the compute advantage divided by the slowdown at the largest size, so "
    "how many times the arm's time the baseline would need. Here it is that of this implementation on this machine."
)
UNIT = 1e12


def write_report(folder: Path) -> Path:
    """Draw the figures of the ladder in `folder` and write `report.html` and `report.md`; the path of the page."""
    ladder = read_ladder(folder)
    figures = draw_ladder(ladder, folder / "figures")
    return write_document(folder, "Scaling ladder", parts_of(ladder, figures))


def parts_of(ladder: LadderResults, figures: dict[str, Path]) -> list[Part]:
    """The report's parts, top to bottom."""
    others = ladder.arms[1:]
    found = {(arm, size.layers): ladder.contest(size).difference(arm) for arm in others for size in ladder.sizes}
    parts: list[Part] = [*_verdicts(ladder), *state_parts(ladder.study), Heading("Sizes"), _sizes_table(ladder)]
    parts += [*text_parts(ladder.study), Heading("Loss at equal tokens"), _loss_table(ladder)]
    parts += [interval_note(list(found.values())), *_sentences(ladder, found)]
    if "differences" in figures:
        parts.append(Figure("figures/differences.png", "paired difference to the baseline at each size"))
    parts.append(Heading("Scaling law"))
    if "scaling" in figures:
        parts.append(Figure("figures/scaling.png", "loss against compute with fitted power laws"))
    parts += [_fits_table(ladder), Paragraph(FIT_NOTE, note=True), Paragraph(f"{FORMULA}.", note=True)]
    parts += [Heading("Equal time"), _time_table(ladder), Paragraph(TIME_NOTE, note=True)]
    parts += [*downstream_parts(ladder.study), Heading("Behind these numbers"), *tuning_parts(ladder.study)]
    parts += [*losses_parts(ladder.study, ("layers", "arm", "stream", "seed")), *settings_parts(ladder.study)]
    return parts


def _verdicts(ladder: LadderResults) -> list[Part]:
    """The compute advantage of each arm in a sentence no stronger than its interval."""
    verdicts: list[Part] = []
    for arm in ladder.arms[1:]:
        found, time = ladder.advantage(arm), ladder.time_advantage(arm)
        if found is not None:
            told = advantage_sentence(arm, ladder.baseline, found, time, fitted=bool(ladder.fits_hold(arm)))
            verdicts.append(Paragraph(told, strong=True))
    if not verdicts:
        verdicts.append(Paragraph("No scaling law yet: it takes sound runs of an arm and the baseline at three sizes."))
    return verdicts


def advantage_sentence(
    arm: str, baseline: str, compute: Interval, time: Interval | None, *, fitted: bool = True
) -> str:
    """A compute advantage in words; `fitted`: by the fits, or as measured at the largest size."""
    measured = "As measured (the fits miss by too much for a difference so small)"
    source = "By the fits" if fitted else measured
    if math.isinf(compute.low):
        return (
            f"{source} {baseline} would need {compute.value:.2f} times the compute for the loss of {arm} at the "
            "largest size; one seed a size gives no interval, so how sure this is cannot be said."
        )
    span = f"{compute.value:.2f} times (95 % {compute.low:.2f} to {compute.high:.2f})"
    if compute.low <= 1 <= compute.high:
        return (
            f"Noise hides the difference in scaling. {source} {baseline} would need {span} the compute for the loss of "
            f"{arm} at the largest size, and 1 lies within."
        )
    clock = "" if time is None else f", and {time.value:.2f} times the time on this machine"
    return f"{source} {baseline} would need {span} the compute for the loss of {arm} at the largest size{clock}."


def _sizes_table(ladder: LadderResults) -> Table:
    header = (
        "layers x width",
        "heads",
        "parameters",
        "of these multiplying",
        "C, 10^12 operations",
        "tokens",
        "tokens a parameter",
        "passes over the text",
        "learning rate",
        "streams",
    )
    return Table(header, [_size_row(ladder, size) for size in ladder.sizes])


def _size_row(ladder: LadderResults, size: Size) -> tuple[str, ...]:
    passes, parameters = ladder.passes(size), size.parameters
    streams = [runs[0].labels["stream"] for arm in ladder.arms[1:] if (runs := ladder.contest(size).runs[arm])]
    return (
        f"{size.layers} x {size.model['width']}",
        f"{size.model['heads']}",
        "-" if parameters is None else f"{parameters:,}",
        f"{size.matrix_parameters:,}",
        f"{size.compute / UNIT:.3g}",
        f"{size.tokens:,}",
        "-" if parameters is None else f"{size.tokens / parameters:.1f}",
        number(passes, 2),
        f"{size.learning_rate:g}",
        ", ".join(streams) or "-",
    )


def _loss_table(ladder: LadderResults) -> Table:
    others = ladder.arms[1:]
    header = ("size", *ladder.arms, *(f"{arm} - {ladder.baseline}" for arm in others))
    rows = [
        (
            f"{size.layers} layers",
            *(number(ladder.contest(size).mean(arm)) for arm in ladder.arms),
            *(signed(ladder.contest(size).difference(arm)) for arm in others),
        )
        for size in ladder.sizes
    ]
    return Table(header, rows)


def _sentences(ladder: LadderResults, found: dict[tuple[str, int], Difference | None]) -> list[Part]:
    return [
        Paragraph(f"{layers} layers: {sentence(difference, arm, ladder.baseline)}")
        for (arm, layers), difference in sorted(found.items(), key=lambda item: item[0][1])
        if difference is not None
    ]


def _fits_table(ladder: LadderResults) -> Table:
    header = (
        "arm",
        "A",
        "alpha",
        f"compute advantage over {ladder.baseline}",
        "as measured at the largest size",
        "paper: A",
        "alpha",
        "advantage",
        "largest miss",
    )
    rows = [_fit_row(ladder, arm, found) for arm in ladder.arms if (found := ladder.scaling(arm)) is not None]
    return Table(header, rows)


def _fit_row(ladder: LadderResults, arm: str, found: Scaling) -> tuple[str, ...]:
    # A at C = 10^12 operations: the law's own unit is one operation.
    factor = UNIT**-found.law.exponent
    theirs = PAPER.get(arm)
    return (
        arm,
        f"{found.law.scale * factor:.4f}",
        _spread(found.exponent),
        "1" if arm == ladder.baseline else _spread(found.advantage, 3),
        "1" if arm == ladder.baseline else _spread(found.measured, 3),
        f"{theirs[0]:.3f}" if theirs else "-",
        f"{theirs[1]:.3f}" if theirs else "-",
        PAPER_ADVANTAGE if arm == "block" else "-",
        f"{found.worst_miss:.4f}",
    )


def _time_table(ladder: LadderResults) -> Table:
    header = ("arm", *(f"{size.layers} layers" for size in ladder.sizes), "time advantage")
    rows = [
        (
            arm,
            *(_slowdown(ladder, arm, size) for size in ladder.sizes),
            "-" if (time := ladder.time_advantage(arm)) is None else _spread(time, 3),
        )
        for arm in ladder.arms[1:]
    ]
    return Table(header, rows)


def _slowdown(ladder: LadderResults, arm: str, size: Size) -> str:
    found = ladder.contest(size).slowdown(arm)
    return "-" if found is None else _spread(found, 3)


def _spread(found: Interval, digits: int = 4) -> str:
    if math.isinf(found.low):
        return f"{found.value:.{digits}f}"
    return f"{found.value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})"
