"""Depth maps of models that have been trained already."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from attention_residuals.errors import InputError
from attention_residuals.experiments.arm_runs import FOLDERS, read_arm_run, run_folders
from attention_residuals.experiments.arm_studies import DepthStudy
from attention_residuals.experiments.depth.findings import ANSWER
from attention_residuals.experiments.depth.report import write_report
from attention_residuals.experiments.printing import say
from attention_residuals.experiments.studies.analyses import analyse
from attention_residuals.experiments.studies.state import STUDY
from attention_residuals.train import RunFolder, require_absent


def map_runs(paths: Sequence[Path], out: Path, console: Console) -> Path:
    """Write `depth.json` beside every run that has none, then a report into the new folder `out`; its path.

    Args:
        paths: run folders that have checkpoints, or studies of such.

    Raises:
        InputError: a path that is neither, two runs of one name and seed, a run without weights.
    """
    require_absent(out)
    folders = [folder.resolve() for path in paths for folder in run_folders(path)]
    runs = [read_arm_run(folder) for folder in folders]
    names = [(run.arm, run.seed) for run in runs]
    for arm, seed in names:
        if names.count((arm, seed)) > 1:
            raise InputError(f"two runs are named {arm} with seed {seed}; name one of them, or one study at a time")
    for run in runs:
        if run.fault is not None:
            say(console, f"{run.path} is left out: {run.fault}")
        elif run.answer(ANSWER) is None:
            with console.status(f"reading {run.path}"):
                RunFolder(run.path).write_json(f"{ANSWER}.json", analyse(ANSWER, run.path))
            say(console, f"{run.path}: {ANSWER}.json")
    opened = RunFolder.create(out)
    opened.write_json(STUDY, {"kind": DepthStudy.kind, FOLDERS: folders})
    return write_report(out)
