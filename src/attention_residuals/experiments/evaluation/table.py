"""The downstream table of a report, drawn from `evaluation.json` files. Knows no torch."""

import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path

from attention_residuals.errors import InputError
from attention_residuals.experiments.document import Heading, Paragraph, Part, Table, write_document
from attention_residuals.experiments.evaluation.scores import (
    EVALUATION,
    Measure,
    Scored,
    difference,
    higher_is_better,
    level,
    most_telling,
    read_scored,
    records,
)
from attention_residuals.experiments.results import Difference

LISTING = "evaluate.json"
"""In the folder of a report: which folders it is of."""

PAPER = {
    ("mmlu",): "73.5 → 74.6",
    ("mmlu_pro",): "52.2 → 52.2",
    ("gpqa_diamond_zeroshot", "gpqa_diamond_n_shot", "gpqa_diamond_cot_zeroshot"): "36.9 → 44.4",
    ("bbh", "bbh_fewshot", "bbh_cot_fewshot"): "76.3 → 78.0",
    ("arc_challenge",): "64.6 → 65.7",
    ("hellaswag",): "83.2 → 83.4",
    ("triviaqa",): "69.9 → 71.8",
    ("gsm8k", "gsm8k_cot"): "81.7 → 82.4",
    ("hendrycks_math", "minerva_math"): "53.5 → 57.1",
    ("humaneval",): "59.1 → 62.2",
    ("mbpp",): "72.0 → 73.9",
    ("cmmlu",): "82.0 → 82.9",
    ("ceval-valid",): "79.6 → 82.5",
}
"""Table 3 of the paper (arXiv 2603.15031), baseline to AttnRes, by names of `lm-eval` for the same benchmark."""

HOW_SCORED = (
    "Scores by lm-eval, ± one standard error; of several seeds their mean and its standard error. Differences with "
    "95 % intervals (Student's t), not corrected for the number of tasks. Log-probability is that of the whole "
    "answer, in nats, the mean over questions (minus the logarithm of lm-eval's perplexity). A task that has it is "
    "judged by it, or by acc_mutual_info, else by its first measure."
)
HOW_MADE = (
    "Tasks named heldout_ are made from the run's validation text: which of four continuations follows "
    "(acc_mutual_info: which gains most probability by the context); the last word of a line or sentence, if it stands "
    "in the context already (recall) or does not (word). Left out because their context is training text too:"
)

Arms = dict[str, list[Scored]]
"""The models of each column."""


def write_evaluation_report(folder: Path) -> Path:
    """Draw the report of an evaluation again, from the folders it is of; returns its page.

    Raises:
        InputError: it is no evaluation, or none of its models has scores any more.
    """
    file = folder / LISTING
    if not file.exists():
        raise InputError(f"{folder} is no evaluation: it has no {LISTING}")
    parts = evaluation_parts([Path(path) for path in json.loads(file.read_text())["runs"]])
    if not parts:
        raise InputError(f"none of the folders in {file} has an {EVALUATION}; evaluate them again")
    return write_document(folder, "What the models know", parts)


def evaluation_parts(run_folders: Sequence[Path]) -> list[Part]:
    """The section "Downstream" of a report; nothing if none of the runs was evaluated.

    See `read_scored` for columns and tables; seeds are averaged over. The first arm is what others are held against.

    Raises:
        InputError: an `evaluation.json` that is damaged.
    """
    scored = [found for folder in run_folders if (found := read_scored(folder)) is not None]
    if not scored:
        return []
    parts: list[Part] = [Heading("Downstream")]
    for group in dict.fromkeys(one.group for one in scored):
        arms: Arms = {}
        for one in scored:
            if one.group == group:
                arms.setdefault(one.arm, []).append(one)
        parts += _group_parts(group, arms)
    missing = len(run_folders) - len(scored)
    if missing:
        parts.append(Paragraph(f"{missing} of {len(run_folders)} runs have no scores and are not shown.", note=True))
    return [*parts, *_notes(scored)]


def _group_parts(group: str, arms: Arms) -> list[Part]:
    measures = _measures(arms)
    below = [measure for measure in measures if any(record["part"] for record in _all_records(measure, arms))]
    main = [measure for measure in measures if measure not in below]
    parts: list[Part] = [Paragraph(f"{group}:")] if group else []
    parts += [Paragraph(_verdict(arm, arms, main), strong=True) for arm in list(arms)[1:]]
    parts += [_scores(main, arms), *_differences(main, arms)]
    if below:
        parts += [_scores(below, arms, "Tasks of the groups above"), *_differences(below, arms, "Their differences")]
    return parts


def _measures(arms: Arms) -> list[Measure]:
    tasks = [item for models in arms.values() for one in models for item in one.about["tasks"].items()]
    found = dict.fromkeys(Measure(task, key) for task, record in tasks for key in record["metrics"])
    order = {measure.task: number for number, measure in reversed([*enumerate(found)])}
    return sorted(found, key=lambda measure: (order[measure.task], measure.is_perplexity))


def _all_records(measure: Measure, arms: Arms) -> list[dict]:
    return [record for models in arms.values() for record in records(measure, models)]


def _scores(measures: Sequence[Measure], arms: Arms, summary: str | None = None) -> Table:
    header, rows = ["task and measure", "questions", "chance", *arms], []
    for measure in measures:
        found = _all_records(measure, arms)
        chance = found[0]["chance"] if measure.is_share else None
        row = [measure.label, _counts(found), "" if chance is None else f"{100 * chance:.0f} %"]
        rows.append(row + [_score(measure, arms[name]) for name in arms])
    papers = [_paper(measure) for measure in measures]
    if any(papers):
        header.append("paper, Table 3")
        rows = [[*row, paper] for row, paper in zip(rows, papers, strict=True)]
    return Table(header, rows, summary)


def _differences(measures: Sequence[Measure], arms: Arms, summary: str | None = None) -> list[Part]:
    """A table by itself, since with it beside the scores a page would not be wide enough."""
    first, *others = arms
    if not others:
        return []
    rows = [
        [measure.label, *(_signed(measure, difference(measure, arms[name], arms[first])) for name in others)]
        for measure in measures
    ]
    return [Table([f"difference to {first}", *others], rows, summary)]


def _counts(found: Sequence[dict]) -> str:
    counts = sorted({record["items"] for record in found if record["items"]})
    return " to ".join(f"{count:,}" for count in dict.fromkeys(counts[:1] + counts[-1:]))


def _score(measure: Measure, scored: Sequence[Scored]) -> str:
    found = [level(measure, record) for record in records(measure, scored)]
    if not found:
        return "-"
    values = [value for value, _ in found]
    error = found[0][1] if len(found) == 1 else statistics.stdev(values) / math.sqrt(len(values))
    spread = "" if error is None else f" ± {_shown(measure, error)}"
    return f"{_shown(measure, statistics.fmean(values))}{spread}{' %' if measure.is_share else ''}"


def _shown(measure: Measure, value: float) -> str:
    if measure.is_share:
        return f"{100 * value:.1f}"
    return f"{value:.2f}" if measure.is_perplexity else f"{value:.4g}"


def _signed(measure: Measure, found: Difference | None) -> str:
    if found is None:
        return "-"
    factor, unit = (100, " points") if measure.is_share else (1, " nats" if measure.is_perplexity else "")
    digits = 1 if measure.is_share else 3
    spread = "" if math.isinf(found.half_width) else f" ± {factor * found.half_width:.{digits}f}"
    return f"{factor * found.mean:+.{digits}f}{spread}{unit}"


def _verdict(arm: str, arms: Arms, measures: Sequence[Measure]) -> str:
    """How often an arm is better than the first one, judged by one measure of each task."""
    reference, counts = next(iter(arms)), {"better": 0, "worse": 0, "apart": 0}
    for measure in most_telling(measures):
        found = difference(measure, arms[arm], arms[reference])
        if found is not None:
            above = found.mean > 0
            word = "better" if above == higher_is_better(measure, arms[arm]) else "worse"
            counts[word if abs(found.mean) > found.half_width else "apart"] += 1
    total = sum(counts.values())
    if not total:
        return f"{arm} and {reference} have no questions in common."
    tasks = "1 task" if total == 1 else f"{total} tasks"
    return (
        f"Of {tasks}, {arm} is better than {reference} on {counts['better']}, worse on {counts['worse']}, and cannot "
        f"be told apart on {counts['apart']}."
    )


def _paper(measure: Measure) -> str:
    return next((text for names, text in PAPER.items() if measure.task in names), "")


def _notes(scored: Sequence[Scored]) -> list[Part]:
    """How the numbers were made, and what they leave out."""
    tasks = [item for one in scored for item in one.about["tasks"].items()]
    dropped = {task: record["dropped"] for task, record in tasks if "dropped" in record}
    lines = [f"{HOW_SCORED} {_pairing(scored)}"]
    if dropped:
        lines.append(f"{HOW_MADE} {sum(dropped.values())} questions.")
    if any(_paper(Measure(task, "")) for task, _ in tasks):
        lines.append("The paper's scores are of 48 B parameters, under a protocol of its own.")
    return [Paragraph(line, note=True) for line in dict.fromkeys([*lines, *_shortened(scored)])]


def _pairing(scored: Sequence[Scored]) -> str:
    if len({one.seed for one in scored}) > 1:
        return "Differences are paired by seed."
    return (
        "Differences are paired by question: they say how these models differ on more such questions, and nothing "
        "about other seeds of training."
    )


def _shortened(scored: Iterable[Scored]) -> Iterable[str]:
    for one in scored:
        tasks = one.about["tasks"].items()
        found = [f"{task} ({record['shortened']:,})" for task, record in tasks if record["shortened"]]
        if found:
            yield (
                f"{one.arm}: requests longer than its context of {one.about['context_tokens']:,} tokens lost text on "
                f"the left or ended early: {', '.join(found)}."
            )
