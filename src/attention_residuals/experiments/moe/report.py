"""The report of the study: whether depth attention helps a mixture of experts more than a dense model."""

import math
import statistics
from pathlib import Path

from attention_residuals.experiments.compute import training_operations
from attention_residuals.experiments.document import Figure, Heading, Paragraph, Part, Table, write_document
from attention_residuals.experiments.moe.analysis import (
    DENSE,
    KINDS,
    MIXTURE,
    MixtureResults,
    ends,
    loads,
    peaks,
    read_mixtures,
)
from attention_residuals.experiments.moe.figures import draw_mixtures
from attention_residuals.experiments.report import sentence
from attention_residuals.experiments.results import Difference
from attention_residuals.experiments.studies.parts import (
    downstream_parts,
    interval_note,
    losses_parts,
    number,
    settings_parts,
    signed,
    state_parts,
    text_parts,
    training_parts,
    tuning_parts,
)
from attention_residuals.experiments.studies.reading import StudyRun

ONE_SEED = (
    "One seed each: nothing can be told from the noise of seeds. Name several, three at least, such as seeds=[1,2,3]."
)
INTERACTION_NOTE = (
    "Each row is paired by seed, over the seeds that are sound in all runs it takes. The third one is the difference "
    "of the first two: below zero, depth attention helps the mixture more. Runs of a seed share all batches, and the "
    "initial value of every parameter that they have in common; experts and MLP have none in common."
)
RATES_NOTE = (
    "The learning rate of each network was found on {baseline}, whose rate {arm} shares without a search of its own."
)
PARAMETERS_NOTE = (
    "At work for a token, beside the embedding: attention, MLP or the experts that it goes through, routers, norms, "
    "head, and what reads over the depth. The routers are all that the mixture has beyond the dense model; their "
    "biases, a number an expert, are no parameters. Operations are those of one token's training, reads over the depth "
    "not counted."
)
LOAD_NOTE = (
    "Load: tokens given to an expert over the mean of its layer; 1 is balance. During training the largest of all "
    "layers is noted at every step, over the tokens of that step; beginning and end are the first and the last tenth "
    "of the steps. After it, one batch was counted in every layer. Tokens that chose at random would have a largest "
    "load of about {chance:.2f} in a step."
)
TIME_NOTE = (
    "Median time of a step, means over the pairs; runs of other arms worked beside them on the same machine. Time is "
    "that of this implementation, which computes expert after expert where there is no kernel for all. Loss at equal "
    "time: {arm} where it was when {baseline} of its seed was done, before its rate had come down, minus {baseline}, "
    "both by the shorter validations during training."
)


def write_report(folder: Path) -> Path:
    """Draw the figures of the study in `folder` and write `report.html` and `report.md`; the path of the page."""
    results = read_mixtures(folder)
    figures = draw_mixtures(results, folder / "figures")
    return write_document(folder, "Depth attention in a mixture of experts", parts_of(results, figures))


def parts_of(results: MixtureResults, figures: dict[str, Path]) -> list[Part]:
    """The report's parts, top to bottom."""
    study, found = results.study, [results.gain(kind) for kind in KINDS]
    parts: list[Part] = [Paragraph(answer(results), strong=True), *state_parts(study), *training_parts(study)]
    rates = RATES_NOTE.format(baseline=results.baseline, arm=results.arm)
    parts += [Paragraph(rates, note=True), *text_parts(study), Heading("Loss at equal tokens")]
    if "losses" in figures:
        parts.append(Figure("figures/losses.png", "losses of both arms in both networks, and paired differences"))
    parts += [_losses_table(results), _differences_table(results), interval_note(found)]
    parts += [Paragraph(INTERACTION_NOTE, note=True), *_sentences(results)]
    parts += [Heading("Parameters"), _parameters_table(results), Paragraph(PARAMETERS_NOTE, note=True)]
    parts += [*_load_parts(results, figures), Heading("Equal time"), _time_table(results)]
    parts.append(Paragraph(TIME_NOTE.format(arm=results.arm, baseline=results.baseline), note=True))
    parts += [*downstream_parts(study), Heading("Behind these numbers"), *tuning_parts(study)]
    return [*parts, *losses_parts(study, ("kind", "arm", "stream", "seed")), *settings_parts(study)]


def answer(results: MixtureResults) -> str:
    """The question's answer in a sentence, no stronger than its interval."""
    found, dense, mixture = results.interaction, *(results.gain(kind) for kind in KINDS)
    if found is None or dense is None or mixture is None:
        return "No answer yet: it takes sound runs of all four on one seed at least."
    if found.over == "windows":
        return ONE_SEED
    arm, numbers = results.arm, f"{_changes(dense, mixture, found)} nats a byte"
    if abs(found.mean) <= found.half_width:
        return f"Noise hides whether {arm} helps the mixture of experts more than the dense model: {numbers}."
    word = "more" if found.mean < 0 else "less"
    return f"{arm} helps the mixture of experts {word} than the dense model of the same active size: {numbers}."


def _changes(dense: Difference, mixture: Difference, found: Difference) -> str:
    return (
        f"it changes the loss of the mixture by {signed(mixture)} and of the dense model by {signed(dense)}, "
        f"a difference of {signed(found)}"
    )


def _losses_table(results: MixtureResults) -> Table:
    rows = [
        (
            f"{kind}, {arm}",
            number(results.contest(kind).mean(arm)),
            f"{len(results.contest(kind).sound(arm))} of {len(results.runs(kind, arm))}",
            ", ".join(f"{rate:g}" for rate in sorted({run.labels["learning_rate"] for run in results.runs(kind, arm)})),
            ", ".join(f"{run.loss:.4f}" for run in results.contest(kind).sound(arm)),
        )
        for kind in KINDS
        for arm in results.arms
    ]
    return Table(("network", "loss", "sound seeds", "learning rate", "loss of each"), rows)


def _differences_table(results: MixtureResults) -> Table:
    change = f"{results.arm} - {results.baseline}"
    found = {f"{kind}: {change}": results.gain(kind) for kind in KINDS}
    found[f"mixture's {change}, minus the dense model's"] = results.interaction
    found |= {f"{arm}: {MIXTURE} - {DENSE}": results.experts(arm) for arm in results.arms}
    rows = [
        (name, signed(value), "-" if value is None else ", ".join(f"{one:+.4f}" for one in value.by_seed))
        for name, value in found.items()
    ]
    return Table(("difference", "mean", "of each seed"), rows)


def _sentences(results: MixtureResults) -> list[Part]:
    return [
        Paragraph(f"In the {name}: {sentence(found, results.arm, results.baseline)}")
        for kind, name in zip(KINDS, ("dense model", "mixture"), strict=True)
        if (found := results.gain(kind)) is not None
    ]


def _parameters_table(results: MixtureResults) -> Table:
    header = ("network", "parameters", "at work for a token", "of these routers", "operations a token", "units")
    firsts = [runs[0] for kind in KINDS for arm in results.arms if (runs := results.runs(kind, arm))]
    return Table(header, [_parameters_row(run) for run in firsts])


def _parameters_row(run: StudyRun) -> tuple[str, ...]:
    model, channels = run.plan["model"], run.plan["model"]["channels"][0]
    units = (
        f"{channels['top_k']} of {channels['experts']} x {channels['hidden']}, and {channels['shared']} shared"
        if channels["type"] == "Experts"
        else f"{channels['hidden']}"
    )
    return (
        f"{run.labels['kind']}, {run.labels['arm']} ({run.labels['stream']})",
        f"{run.about['parameters']:,}" if run.about else "-",
        f"{run.labels['active']:,}",
        f"{run.labels['router']:,}",
        f"{training_operations(model, run.plan['text']['sequence_tokens']):,.0f}",
        units,
    )


def _load_parts(results: MixtureResults, figures: dict[str, Path]) -> list[Part]:
    parts: list[Part] = [Heading("Load of the experts")]
    if "peaks" in figures:
        parts.append(Figure("figures/peaks.png", "largest load over the mean during training"))
    header = ("run", "largest load: beginning", "end", "after training: largest", "mean of the layers' largest")
    parts.append(Table(header, [_load_row(run) for run in results.mixtures]))
    parts.append(Paragraph(LOAD_NOTE.format(chance=results.even_peak), note=True))
    if "loads" in figures:
        parts.append(Figure("figures/loads.png", "load of every expert in every layer after training"))
    experts = results.study.settings["experts"]
    rows = [
        (f"{run.name}, layer {layer}", *(f"{load:.2f}" for load in row))
        for run in results.mixtures
        for layer, row in sorted(loads(run).items())
    ]
    return [*parts, Table(("layer", *(str(n + 1) for n in range(experts))), rows, "Load of every expert")]


def _load_row(run: StudyRun) -> tuple[str, ...]:
    during, after = peaks(run), [max(row) for row in loads(run).values()]
    return (
        run.name,
        *(number(value, 2) for value in (ends(during) if during else (None, None))),
        number(max(after), 2) if after else "-",
        number(statistics.fmean(after), 2) if after else "-",
    )


def _time_table(results: MixtureResults) -> Table:
    header = ("network", *(f"{arm}, ms a step" for arm in results.arms), "slowdown", "loss at equal time")
    return Table(header, [_time_row(results, kind) for kind in KINDS])


def _time_row(results: MixtureResults, kind: str) -> tuple[str, ...]:
    contest = results.contest(kind)
    slowdown = contest.slowdown(results.arm)
    times = [[1000 * run.step_seconds for run in side] for side in reversed(contest.pairs(results.arm))]
    span = "" if slowdown is None or math.isinf(slowdown.low) else f" ({slowdown.low:.3f} to {slowdown.high:.3f})"
    return (
        kind,
        *(number(statistics.fmean(found), 1) if found else "-" for found in times),
        "-" if slowdown is None else f"{slowdown.value:.3f}{span}",
        signed(results.at_equal_time(kind)),
    )
