"""A study carried out in this process: what its processes would leave behind, without starting them."""

from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from rich.console import Console

from attention_residuals.configs import to_plain
from attention_residuals.experiments.studies.engine import open_study
from attention_residuals.experiments.studies.plan import PlannedRun, Study
from attention_residuals.experiments.studies.state import PLAN, RUNS, run_state
from attention_residuals.experiments.studies.worker import read_plan, work
from attention_residuals.train import RunFolder


def finish_study(study: Study, folder: Path, runs: Sequence[PlannedRun] = ()) -> None:
    """Plan every run that it begins with and train it, or `runs` instead."""
    open_study(study, folder)
    planned = len(list((folder / PLAN).iterdir()))
    for number, run in enumerate(runs or study.runs({}), planned):
        plain = {"number": number, "run": to_plain(run), "cost": run.cost, "tokens": run.tokens}
        RunFolder(folder / PLAN).write_json(f"{run.name}.json", plain)
        assert work(read_plan(folder, run.name), folder / RUNS / run.name, Console(file=StringIO(), width=200))


def run_study_here(study: Study, folder: Path, *_: object) -> bool:
    """In place of `run_study`: every run, also those that depend on how others ended."""
    open_study(study, folder)
    while waiting := _not_ended(study, folder):
        finish_study(study, folder, waiting)
    return True


def _not_ended(study: Study, folder: Path) -> list[PlannedRun]:
    states = {path.stem: run_state(folder / RUNS / path.stem) for path in (folder / PLAN).iterdir()}
    ended = {name: state for name, state in states.items() if state.ended}
    return [run for run in study.runs(ended) if run.name not in ended]


def write_corpus(folder: Path) -> Path:
    """A text so regular that a few dozen steps learn more of it than its byte frequencies."""
    path = folder / "corpus.txt"
    path.write_text("".join(f"line {n % 7} of a text that is long enough to learn from\n" for n in range(600)))
    return path
