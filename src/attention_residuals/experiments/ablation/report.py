"""The report of an ablation: every arm against the baseline, beside the paper's Table 4 and Figure 6."""

from pathlib import Path

from attention_residuals.experiments.ablation import paper
from attention_residuals.experiments.ablation.figures import draw_ablation
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
from attention_residuals.experiments.studies.reading import StudyRuns, read_study

PAPER_NOTE = (
    "The paper's differences are of models of 436 M parameters on other text, one run each (arXiv 2603.15031, Table 4 "
    "and Figure 6); one block of all sublayers stands beside its S = 32. Compare signs and order, not sizes. "
    "Agreement: whether both differences have one sign, where ours can be told from zero."
)
RANK_NOTE = (
    "Ranks go by the mean paired difference, over sound runs alone; an arm that lost a seed has none. Neighbours whose "
    "intervals overlap are not told apart by them, and with this many arms about one in twenty intervals misses its "
    "truth."
)


def write_report(folder: Path) -> Path:
    """Draw the figures of the ablation in `folder` and write `report.html` and `report.md`; the path of the page."""
    study = read_study(folder)
    contest, streams = contest_of(study), streams_of(study)
    sublayers = 2 * study.settings["layers"]
    figures = draw_ablation(contest, streams, sublayers, folder / "figures")
    return write_document(folder, "Ablation", parts_of(study, contest, streams, figures))


def contest_of(study: StudyRuns) -> Contest:
    """All arms, in the order they were named."""
    return Contest({arm: study.select(part="compare", arm=arm) for arm in study.settings["arms"]})


def streams_of(study: StudyRuns) -> dict[str, str]:
    """The name each arm resolves to at this size; itself until its runs are planned."""
    planned = {run.labels["arm"]: run.labels["stream"] for run in study.select(part="compare")}
    return {arm: planned.get(arm, arm) for arm in study.settings["arms"]}


def parts_of(study: StudyRuns, contest: Contest, streams: dict[str, str], figures: dict[str, Path]) -> list[Part]:
    """The report's parts, top to bottom."""
    sublayers = 2 * study.settings["layers"]
    found = {arm: contest.difference(arm) for arm in contest.arms[1:]}
    parts: list[Part] = [*_verdict(contest), *state_parts(study), *training_parts(study), *text_parts(study)]
    parts += [Heading("Against the paper"), _table(contest, streams, sublayers)]
    parts += [interval_note(list(found.values())), Paragraph(RANK_NOTE, note=True), Paragraph(PAPER_NOTE, note=True)]
    if "variants" in figures:
        parts.append(Figure("figures/variants.png", "paired difference of each arm to the baseline, and the paper's"))
    if "block-size" in figures:
        parts += [Heading("Block size"), Figure("figures/block-size.png", "loss against block size, and the paper's")]
    parts += [Paragraph(sentence(difference, arm, contest.baseline)) for arm, difference in found.items() if difference]
    parts += [*downstream_parts(study), Heading("Behind these numbers"), *tuning_parts(study)]
    return [*parts, *losses_parts(study, ("arm", "stream", "seed")), *settings_parts(study)]


def agreement(contest: Contest, arm: str, theirs: float | None) -> str:
    """Whether an arm's difference has the sign of the paper's, in words."""
    if theirs is None or arm == contest.baseline:
        return "-"
    better = contest.wins(arm)
    if better is None:
        return "hidden by noise"
    return "agrees" if better == (theirs < paper.BASELINE) else "disagrees"


def _verdict(contest: Contest) -> list[Part]:
    told = [arm for arm in contest.arms[1:] if contest.difference(arm) is not None]
    if not told:
        return [Paragraph("Nothing to compare yet.", strong=True)]
    if one_seed([contest.difference(arm) for arm in told]):
        return [Paragraph(ONE_SEED, strong=True)]
    groups = {
        "better than": [arm for arm in told if contest.wins(arm) is True],
        "worse than": [arm for arm in told if contest.wins(arm) is False],
        "not to be told from": [arm for arm in told if contest.wins(arm) is None],
    }
    words = [f"{word} {contest.baseline}: {', '.join(arms)}" for word, arms in groups.items() if arms]
    return [Paragraph(f"By 95 % intervals, {'; '.join(words)}.", strong=True)]


def _table(contest: Contest, streams: dict[str, str], sublayers: int) -> Table:
    header = (
        "arm",
        "rank",
        "loss",
        f"minus {contest.baseline}",
        "paper's loss",
        "minus its baseline",
        "agreement",
        "sound seeds",
        "parameters",
        "step time",
    )
    ranking = contest.ranking()
    order = sorted(contest.arms, key=lambda arm: ranking.index(arm) if arm in ranking else len(ranking))
    return Table(header, [_row(contest, arm, streams[arm], sublayers, ranking) for arm in order])


def _row(contest: Contest, arm: str, stream: str, sublayers: int, ranking: list[str]) -> tuple[str, ...]:
    theirs = paper.loss(stream, sublayers)
    slowdown = contest.slowdown(arm)
    parameters = [run.about["parameters"] for run in contest.runs[arm] if run.about]
    return (
        arm if arm == stream else f"{arm} ({stream})",
        str(ranking.index(arm) + 1) if arm in ranking else "-",
        number(contest.mean(arm)),
        "0" if arm == contest.baseline else signed(contest.difference(arm)),
        number(theirs, 3),
        "-" if theirs is None else f"{theirs - paper.BASELINE:+.3f}",
        agreement(contest, arm, theirs),
        f"{len(contest.sound(arm))} of {len(contest.runs[arm])}",
        f"{parameters[0]:,}" if parameters else "-",
        "-" if slowdown is None else f"x {slowdown.value:.2f}",
    )
