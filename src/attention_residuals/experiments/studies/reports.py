"""The report of any folder that holds results: a comparison's, or one of the studies'. Knows no torch."""

import importlib
import json
from pathlib import Path

from attention_residuals.errors import InputError
from attention_residuals.experiments.evaluation.table import write_evaluation_report
from attention_residuals.experiments.overview import REPRODUCTION, write_overview
from attention_residuals.experiments.studies.state import STUDY

REPORTS = {
    "ladder": "attention_residuals.experiments.ladder.report",
    "ablate": "attention_residuals.experiments.ablation.report",
    "sweep": "attention_residuals.experiments.sweep.report",
    "moe": "attention_residuals.experiments.moe.report",
    "dynamics": "attention_residuals.experiments.dynamics.report",
    "depth": "attention_residuals.experiments.depth.report",
}
"""The module with `write_report(folder)` of each kind of study; imported when asked for, since it draws."""


def write_report(folder: Path) -> Path:
    """Draw the figures of the results in `folder` again and write its report; the path of the page.

    Raises:
        InputError: the folder holds no results, or those of a kind that this version does not know.
    """
    if (folder / "compare.json").exists():
        return _of("attention_residuals.experiments.report", folder)
    if (folder / REPRODUCTION).exists():
        for kind in REPORTS:
            if (folder / kind / STUDY).exists():
                write_report(folder / kind)
        return write_overview(folder)
    if (folder / "evaluate.json").exists():
        return write_evaluation_report(folder)
    if not (folder / STUDY).exists():
        raise InputError(f"{folder} holds no results: it has no compare.json, no evaluate.json and no {STUDY}")
    kind = json.loads((folder / STUDY).read_text())["kind"]
    if kind not in REPORTS:
        raise InputError(f"{folder} is a study of kind '{kind}'; this version reports {', '.join(REPORTS)}")
    return _of(REPORTS[kind], folder)


def _of(module: str, folder: Path) -> Path:
    return importlib.import_module(module).write_report(folder)
