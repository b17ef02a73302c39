"""The report of an inspection, from its JSON alone."""

import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from attention_residuals.errors import InputError
from attention_residuals.experiments.depth.findings import largest_effects, masked_pairs, rank_correlation, sink
from attention_residuals.experiments.document import Figure, Heading, Paragraph, Part, Table, write_document
from attention_residuals.experiments.inspection.figures import MASKING, WEIGHTS, draw_all

ANSWER = "inspection.json"
MOST_PAIRS = 12

WEIGHTS_NOTE = (
    "Mean weight of each source against an equal share, in doublings: 0 everywhere before tuning. Inside a block the "
    "last source is its partial sum."
)
MASKING_NOTE = (
    "One source is left out of one read and the remaining weights grow to their sum; all before stays, all after "
    "follows. The increase of validation loss is its effect. The lowest row leaves the source out of every read that "
    "has another. In a network that was converted a source may be needed whatever its weight is, since its readers "
    "were trained on the sum of all: a large effect beside an average weight says this, and no more."
)


def write_report(folder: Path) -> Path:
    """Draw the figures and write `report.html` and `report.md` beside the answer in `folder`; the path of the page.

    Raises:
        InputError: there is no answer.
    """
    try:
        found = json.loads((folder / ANSWER).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} holds no inspection ({error}); run attnres inspect") from error
    draw_all(found, folder)
    parts: list[Part] = [
        Paragraph(
            f"{found['architecture']}, {found['description']}. Means over {found['tokens']:,} tokens of "
            f"{found['text']}, validation loss {found['loss']:.4f} nats a token."
        )
    ]
    parts += [Paragraph(text, strong=True) for text in sentences(found)]
    parts += [Heading("Depth weights"), Figure(WEIGHTS, "depth weights of every read")]
    parts += [_weight_table(found), Paragraph(WEIGHTS_NOTE, note=True)]
    if found["masking"] is not None:
        parts += [Heading("Masking a source"), Figure(MASKING, "weight and effect of each source")]
        parts += [*_masking_tables(found), Paragraph(MASKING_NOTE, note=True)]
    return write_document(folder, "Depth attention of a pretrained model", parts)


def sentences(found: Mapping[str, Any]) -> Iterator[str]:
    """What the numbers say."""
    rows, shares = found["reads"]["weights"], found["reads"]["entropy_shares"]
    chosen = [share for share, row in zip(shares, rows, strict=True) if len(row) > 1]
    if not chosen:
        yield "No read has a choice."
        return
    lowest = min(chosen)
    least = found["read_names"][shares.index(lowest)]
    yield f"Reads keep {statistics.fmean(chosen):.3f} of the largest entropy; least has {least}, {lowest:.3f}."
    if (deepest := sink(rows)) is not None:
        source, excess = deepest
        yield (
            f"Of sources that are not the latest, {found['sources'][source]} attracts most weight, {excess:.2f} times "
            "an equal share."
        )
    if (masking := found["masking"]) is None:
        return
    told = [
        f"{value:+.2f} with the {word}"
        for key, word in (("weights", "weight"), ("shares", "share of the mixture"))
        if (value := rank_correlation(masked_pairs(masking, key))) is not None
    ]
    if told:
        yield f"The effect of masking a source in one read has a rank correlation of {' and '.join(told)}."
    effect, source = max((effect, n) for n, effect in enumerate(masking["everywhere"]))
    yield f"Masked in every read, {found['sources'][source]} costs most: {effect:+.3f} nats a token."


def _weight_table(found: Mapping[str, Any]) -> Part:
    sources, reads = found["sources"], found["reads"]
    rows = [
        [name, f"{entropy:.3f}", *(f"{value:.3f}" for value in row), *[""] * (len(sources) - len(row))]
        for name, entropy, row in zip(found["read_names"], reads["entropy_shares"], reads["weights"], strict=True)
    ]
    return Table(["read", "entropy share", *sources], rows, "Weights as numbers")


def _masking_tables(found: Mapping[str, Any]) -> list[Part]:
    masking, sources, names = found["masking"], found["sources"], found["read_names"]
    rows = [[name, *map(_effect, row)] for name, row in zip(names, masking["effects"], strict=True)]
    rows.append(["in all reads", *map(_effect, masking["everywhere"])])
    padded = [[*row, *[""] * (len(sources) + 1 - len(row))] for row in rows]
    largest = largest_effects(masking, sources, MOST_PAIRS, names)
    title = f"All effects as numbers, {masking['tokens']:,} tokens, loss {masking['loss']:.4f}"
    return [
        Table(("read", "source", "weight", "share", "effect ± two standard errors"), largest, "The costliest pairs"),
        Table(["read", *sources], padded, title),
    ]


def _effect(value: float | None) -> str:
    return "-" if value is None else f"{value:+.4f}"
