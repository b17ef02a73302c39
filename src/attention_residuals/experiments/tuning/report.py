"""The report of a tuning study, and the page of results, from its files alone."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from attention_residuals.experiments.document import Figure, Heading, Paragraph, Part, Table, write_document
from attention_residuals.experiments.results import Difference
from attention_residuals.experiments.tuning.figures import CURVES, DIFFERENCES, RATES, draw_all
from attention_residuals.experiments.tuning.findings import (
    REFERENCE,
    WITHOUT_DEPTH,
    TuningResults,
    at_an_end,
    rates_told,
    read_results,
)

TITLE = "Tuning a pretrained model that was given depth attention"


def write_report(folder: Path) -> Path:
    """Draw the figures and write `report.html` and `report.md` into the folder of a study; the path of the page.

    Raises:
        InputError: there is nothing to report of.
    """
    results = read_results(folder)
    return write_document(folder, TITLE, parts(results, draw_all(results, folder)))


def write_page(folders: Sequence[Path], page: Path) -> Path:
    """Write the tables and findings of several studies as one Markdown page, its figures in a folder beside it.

    Raises:
        InputError: one of them has nothing to report of.
    """
    all_results = {folder: read_results(folder) for folder in folders}
    blocks = [f"# {TITLE}"]
    for folder, results in all_results.items():
        place = page.with_suffix("") / folder.name
        place.mkdir(parents=True, exist_ok=True)
        prefix = f"{page.stem}/{folder.name}/"
        found = parts(results, draw_all(results, place))
        moved = [Figure(prefix + part.file, part.alternative) if isinstance(part, Figure) else part for part in found]
        blocks += [f"## {_name(results)}", *(_lower(part).markdown() for part in moved)]
    page.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return page


def parts(results: TuningResults, figures: Sequence[str]) -> list[Part]:
    """What there is to say, show and count."""
    found: list[Part] = [Paragraph(setting(results))]
    found += [Paragraph(text, strong=True) for text in sentences(results)]
    found += [Table(*_table(results)), Figure(CURVES, "validation loss against steps")]
    if DIFFERENCES in figures:
        found.append(Figure(DIFFERENCES, "paired differences to queries alone"))
    found += [Heading("Rates"), Figure(RATES, "final loss of every rate"), _rate_table(results)]
    found.append(
        Paragraph(
            "Rates are chosen on the first seed by the final loss, which is therefore a little too good there; other "
            "seeds take them as they are. Rates of two parts are factors on the best of each.",
            note=True,
        )
    )
    return found


def setting(results: TuningResults) -> str:
    """What was done, in words."""
    study = results.study
    block = study["block"]
    tokens = study["steps"] * study["batch"] * study["sequence_tokens"]
    text = ", ".join(study["data"]) or "the Python standard library"
    common = (
        f"{study['steps']} steps of {study['batch']} x {study['sequence_tokens']} tokens ({tokens:,} in all) on "
        f"{text}; blocks: {block['type']}({block['count']}); {study['evaluation_tokens']:,} tokens of validation."
    )
    if study["kind"] == "large":
        return f"{Path(study['model']).name}, one seed. {common} Intervals are over windows of validation text."
    base = ", ".join(study["base_data"])
    return (
        f"A Llama of {study['layers']} layers and width {study['width']}, trained here on {base} (bytes, "
        f"{study['base_steps']} steps of {study['base_batch']} x {study['sequence_tokens']}), tuned on another text: "
        f"{common} {len(study['seeds'])} seeds, each with a base of its own; intervals (95 %) are over seeds, paired."
    )


def sentences(results: TuningResults) -> Iterator[str]:
    """Findings, each with its interval."""
    if REFERENCE not in results.chosen:
        return
    gain = results.gain(REFERENCE)
    yield f"Queries alone change the loss by {_signed(gain)} nats a token."
    for arm in results.chosen:
        if arm == REFERENCE:
            continue
        found = results.difference(arm)
        verdict = "better than" if found.mean < 0 else "worse than"
        verdict = verdict if _is_told(found) else "not told apart from"
        yield f"{arm}: {verdict} queries alone, {_signed(found)}."
    for arm, without in WITHOUT_DEPTH:
        if arm in results.chosen and without in results.chosen:
            found = results.difference(arm, without)
            verdict = "" if _is_told(found) else ", not told apart from nothing"
            yield f"What depth adds to {without}: {_signed(found)}{verdict}."


def _table(results: TuningResults) -> tuple[list[str], list[list[str]]]:
    with_other = any(run.get("other") is not None for runs in results.chosen.values() for run in runs)
    rows = []
    for arm, runs in results.chosen.items():
        row = [arm, f"{runs[0]['parameters']:,}", rates_told(runs[0]["rates"]), f"{_mean(runs, 'before'):.4f}"]
        row += [f"{_mean(runs, 'after'):.4f}", _signed(results.gain(arm))]
        row.append("" if arm == REFERENCE or REFERENCE not in results.chosen else _signed(results.difference(arm)))
        row.append(f"{_mean(runs, 'seconds') / results.study['steps']:.2f}")
        if with_other:
            row.append(f"{_mean(runs, 'other'):.4f}")
        rows.append(row)
    header = ["trained", "parameters", "peak rates", "before", "after", "change", f"minus {REFERENCE}", "s a step"]
    return [*header, *(["on its first text, after"] if with_other else [])], rows


def _rate_table(results: TuningResults) -> Part:
    rows = []
    for arm, runs in results.tried.items():
        chosen = results.chosen[arm][0]["x"]
        for run in runs:
            mark = "" if run["x"] != chosen else "chosen, at an end" if at_an_end(results, arm) else "chosen"
            after = "broke" if run["after"] is None else f"{run['after']:.4f}"
            rows.append([arm, rates_told(run["rates"]), after, mark])
    return Table(("trained", "peak rates", "after", ""), rows, "Every rate that was tried, on the first seed")


def _mean(runs: Sequence[dict], key: str) -> float:
    return sum(run[key] for run in runs) / len(runs)


def _is_told(found: Difference) -> bool:
    return abs(found.mean) > found.half_width


def _signed(found: Difference) -> str:
    return f"{found.mean:+.4f}" + ("" if math.isinf(found.half_width) else f" ± {found.half_width:.4f}")


def _name(results: TuningResults) -> str:
    return "A small model" if results.study["kind"] == "small" else Path(results.study["model"]).name


def _lower(part: Part) -> Part:
    """A heading one level lower, since each study has one of its own."""
    return Paragraph(f"### {part.text}") if isinstance(part, Heading) else part
