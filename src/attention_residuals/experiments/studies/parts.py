"""Pieces that the reports of all studies share. Knows no torch."""

import json
import math
from collections.abc import Sequence

from attention_residuals.experiments.document import Heading, Paragraph, Part, Table
from attention_residuals.experiments.evaluation.table import evaluation_parts
from attention_residuals.experiments.results import Difference
from attention_residuals.experiments.studies.reading import StudyRun, StudyRuns


def text_parts(study: StudyRuns) -> list[Part]:
    """What was trained on, and how much of the validation text the training text has."""
    about = study.text.get("about")
    if not about:
        return []
    return [
        Paragraph(
            f"Text: {about['source']}, {about['training_bytes']:,} bytes to train on, "
            f"{about['validation_bytes']:,} to validate ({about['split']}); bytes as tokens. A model that ignores "
            f"context can reach {about['unigram_entropy']:.3f} nats. {study.text['seen_share']:.2%} of the validation "
            "text, in pieces of 64 tokens, stands word for word in the training text.",
            note=True,
        )
    ]


def state_parts(study: StudyRuns) -> list[Part]:
    """Runs that are missing, and runs that do not count with the reason; nothing where all is well."""
    parts: list[Part] = []
    if study.waiting:
        ended = len(study.runs) - len(study.waiting)
        parts.append(Paragraph(f"Not over yet: {ended} of the {len(study.runs)} runs planned so far have ended.", True))
    if study.kept_out:
        rows = [(run.name, "; ".join(run.faults)) for run in study.kept_out]
        parts += [Heading("Kept out of fits and rankings"), Table(("run", "why"), rows)]
    return parts


def training_parts(study: StudyRuns) -> list[Part]:
    """How long the compared runs are, by parameters and by passes over the text."""
    runs = study.select(part="compare")
    if not runs:
        return []
    tokens = sorted({run.tokens for run in runs})
    shares = [run.tokens / run.about["parameters"] for run in runs if run.about]
    words = [f"{_range(tokens, ',')} tokens a run"]
    if shares:
        words.append(f"{_range(shares, '.3g')} a parameter")
    if study.text:
        passes = [count / study.text["about"]["training_tokens"] for count in tokens]
        words.append(f"{_range(passes, '.2g')} passes over the text")
    rates = {run.labels["learning_rate"] for run in runs}
    return [Paragraph(f"{', '.join(words)}; learning rate {', '.join(f'{rate:g}' for rate in sorted(rates))}.")]


def tuning_parts(study: StudyRuns) -> list[Part]:
    """The runs that found the learning rates."""
    trials = study.select(part="tune")
    if not trials:
        return []
    rows = [
        (_size(run), f"{run.labels['learning_rate']:g}", _loss(run))
        for run in sorted(trials, key=lambda run: (run.labels["layers"], _kind(run), run.labels["learning_rate"]))
    ]
    return [Table(("size", "learning rate", "validation loss"), rows, "Learning rates tried on the baseline")]


def downstream_parts(study: StudyRuns) -> list[Part]:
    """What its sound runs scored in `attnres evaluate`; nothing before that."""
    return evaluation_parts([run.path for run in study.select(part="compare") if run.sound])


def settings_parts(study: StudyRuns) -> list[Part]:
    """What was asked, and one run's config in full."""
    rows = [(name, json.dumps(value)) for name, value in _flat(study.settings)]
    return [Table(("setting", "value"), rows, "Settings")]


def losses_parts(study: StudyRuns, labels: Sequence[str]) -> list[Part]:
    """Every compared run: some of its labels, its loss and its speed."""
    rows = [
        (*(str(run.labels[label]) for label in labels), _loss(run), _seconds(run), "; ".join(run.faults))
        for run in study.select(part="compare")
    ]
    return [Table((*labels, "validation loss", "median step, ms", "remarks"), rows, "Every run")]


def signed(found: Difference | None) -> str:
    """A difference with half its interval."""
    if found is None:
        return "-"
    spread = "" if math.isinf(found.half_width) else f" ± {found.half_width:.4f}"
    return f"{found.mean:+.4f}{spread}"


def number(value: float | None, digits: int = 4) -> str:
    """A number, or a dash for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def interval_note(found: Sequence[Difference | None]) -> Paragraph:
    """What the intervals are over."""
    one_seed = any(difference is not None and difference.over == "windows" for difference in found)
    if one_seed:
        return Paragraph(
            "Where one seed alone is sound the 95 % interval is over windows of validation text. It says how far this "
            "pair of models differs on more such text, and nothing about other seeds.",
            note=True,
        )
    return Paragraph("± is half the 95 % interval of the mean over paired seeds (Student's t).", note=True)


ONE_SEED = "One seed each: nothing can be told from the noise of seeds. Name several, three at least, with --seeds."


def one_seed(found: Sequence[Difference | None]) -> bool:
    """Whether something is compared, and all of it on one seed."""
    told = [difference for difference in found if difference is not None]
    return bool(told) and all(difference.over == "windows" for difference in told)


def _size(run: StudyRun) -> str:
    kind = f"{_kind(run)}, " if _kind(run) else ""
    return f"{kind}{run.labels['layers']} layers, width {run.labels['width']}"


def _kind(run: StudyRun) -> str:
    """Of its network, in a study of several kinds."""
    return run.labels.get("kind", "")


def _range(values: Sequence[float], form: str) -> str:
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low} to {high}"


def _loss(run: StudyRun) -> str:
    if run.state.final is not None:
        return f"{run.loss:.4f}"
    return "stopped" if run.state.stopped is not None else "not over"


def _seconds(run: StudyRun) -> str:
    return f"{1000 * run.step_seconds:.1f}" if run.state.final is not None else "-"


def _flat(value: object, path: str = "") -> list[tuple[str, object]]:
    if not isinstance(value, dict):
        return [(path, value)]
    return [
        pair
        for key, inner in value.items()
        if key != "type" or path == ""
        for pair in _flat(inner, f"{path}.{key}" if path else key)
    ]
