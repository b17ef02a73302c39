"""The page that leads to the reports of a whole reproduction. Knows no torch."""

import json
from pathlib import Path
from typing import Any

from attention_residuals.experiments.document import (
    Figure,
    Heading,
    Link,
    Paragraph,
    Part,
    Points,
    Table,
    read_findings,
    write_document,
)
from attention_residuals.experiments.studies.reading import read_study
from attention_residuals.experiments.studies.state import STUDY

REPRODUCTION = "reproduction.json"
"""In the folder of a reproduction: what it was asked with."""

CLAIMS = {
    "control": "With zero queries and the exact scale, depth attention is the standard residual",
    "ladder": "Lower loss at equal compute, about 1.25 times the compute at equal loss (Table 2)",
    "dynamics": "Bounded outputs, even gradients along the depth (Figure 5)",
    "depth": "What reads choose, and the structure of their mixing (Figures 8 and 9)",
    "ablate": "Variants, block sizes and rivals (Table 4, Figure 6)",
    "sweep": "Deeper and narrower networks become the better ones (Figure 7)",
}
"""The paper's claim behind each folder."""

FIGURES = {
    "ladder": {
        "figures/differences.png": "paired difference to the baseline at each size",
        "figures/scaling.png": "loss against compute with fitted power laws",
    },
    "dynamics": {
        "magnitude.png": "size of the running sum by layer, and of each output",
        "gradient.png": "gradient norm by layer, and at each output",
    },
    "depth": {"weights-block.png": "depth weights of Block", "mixing.png": "depth mixing matrix of every scheme"},
    "ablate": {"figures/variants.png": "paired difference of each arm to the baseline, and the paper's"},
    "sweep": {"figures/sweep.png": "losses of baseline and arm over shapes, and their difference"},
}
"""What to see of each study before its report is opened; those that were drawn."""


def write_overview(folder: Path) -> Path:
    """Write `report.html` and `report.md` of a reproduction, whether it is over or not; the path of the page."""
    parts: list[Part] = []
    for name, claim in CLAIMS.items():
        if (folder / name).exists():
            parts += [Heading(claim), *(_control(folder / name) if name == "control" else _study(folder / name))]
    return write_document(folder, "The paper's claims at this scale", parts)


def _control(folder: Path) -> list[Part]:
    file = folder / "control.json"
    if not file.exists():
        return [Paragraph("Not over yet.")]
    found: dict[str, Any] = json.loads(file.read_text())
    rows = [(name, f"{row['largest']:.1e}", str(row["step"])) for name, row in found["differences"].items()]
    words = f"Largest difference of loss to the standard residual in {found['steps']} steps of float64, nats a token."
    return [Paragraph(words), Table(("stream", "difference", "at step"), rows)]


def _study(folder: Path) -> list[Part]:
    if not (folder / STUDY).exists():
        return [Paragraph("Not begun yet.")]
    study = read_study(folder)
    ended = len(study.runs) - len(study.waiting)
    words = f"{ended} of the {len(study.runs)} runs planned so far have ended, {len(study.kept_out)} are kept out."
    parts: list[Part] = [Paragraph(words, note=True)]
    if findings := read_findings(folder):
        parts.insert(0, Points(findings))
    shown = FIGURES[folder.name].items()
    parts += [Figure(f"{folder.name}/{file}", words) for file, words in shown if (folder / file).exists()]
    return [*parts, *_report(folder)]


def _report(folder: Path) -> list[Part]:
    there = (folder / "report.html").exists()
    return [Link("The report, with all numbers", f"{folder.name}/report.html")] if there else []
