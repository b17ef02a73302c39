"""Runs of named arms as read from their folders, for reports. Reads files only; knows no torch."""

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_residuals.errors import InputError
from attention_residuals.experiments.results import interval_half_width
from attention_residuals.experiments.studies.reading import read_study
from attention_residuals.experiments.studies.state import RUNS, STOPPED, STUDY, read_plan, run_state

LARGE = 1e5
"""A mean that is not written out: its digits before the point say nothing."""

FOLDERS = "folders"
"""In `study.json`, where a report is about run folders that lie elsewhere."""


@dataclass(frozen=True)
class ArmRun:
    """One run. `lines` are those of its metrics, `final` the last of them, `config` is its `config.json`.

    `faults`: what its study has against it.
    """

    arm: str
    seed: int
    path: Path
    config: dict[str, Any]
    lines: list[dict[str, Any]]
    final: dict[str, Any] | None
    stopped: str | None
    faults: tuple[str, ...] = ()

    @property
    def curve(self) -> list[dict[str, Any]]:
        """Steps at which validation loss was taken."""
        return [line for line in self.lines if "step" in line and "validation_loss" in line]

    @property
    def fault(self) -> str | None:
        """Why its numbers say nothing of its arm; None for a sound run."""
        if self.stopped is not None:
            return f"stopped: {self.stopped}"
        if self.final is None:
            return "has not ended"
        entropy = self.config["data"]["unigram_entropy"]
        loss = self.final["validation_loss"]
        if loss >= entropy:
            return f"learned no more than token frequencies: validation loss {loss:.3f}, unigram entropy {entropy:.3f}"
        return "; ".join(self.faults) or None

    def answer(self, name: str) -> dict[str, Any] | None:
        """What the analysis `name` found; None where it was not asked."""
        file = self.path / f"{name}.json"
        return json.loads(file.read_text()) if file.exists() else None

    def probes(self) -> list[dict[str, Any]]:
        """What was seen along the depth during training."""
        file = self.path / "probes.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@dataclass(frozen=True)
class Arms:
    """All runs of a report, arms in the order they were named; the first is what others are held against."""

    runs: list[ArmRun]

    @property
    def names(self) -> list[str]:
        """Arms with a sound run, in order."""
        return list(dict.fromkeys(run.arm for run in self.runs if run.fault is None))

    @property
    def faulty(self) -> list[ArmRun]:
        """Runs that take part in nothing."""
        return [run for run in self.runs if run.fault is not None]

    def of(self, arm: str) -> list[ArmRun]:
        """Sound runs of an arm, by seed."""
        return sorted((run for run in self.runs if run.arm == arm and run.fault is None), key=lambda run: run.seed)

    def first(self, arm: str) -> ArmRun:
        """The sound run of its lowest seed: the one that figures show."""
        return self.of(arm)[0]

    def over_seeds(self, arm: str, value: Callable[[ArmRun], float]) -> "Estimate":
        """A number of every sound run of an arm, put together."""
        return estimate([value(run) for run in self.of(arm)])

    def paired_differences(self, arm: str) -> list[float]:
        """Final validation loss minus that of the first arm, for each seed both have."""
        theirs = {run.seed: _loss(run) for run in self.of(self.names[0])}
        return [_loss(run) - theirs[run.seed] for run in self.of(arm) if run.seed in theirs]


@dataclass(frozen=True)
class Estimate:
    """Mean over seeds with half of its 95 % interval (Student's t), None for one seed."""

    mean: float
    half_width: float | None

    def text(self, digits: int = 2, signed: bool = False) -> str:
        """For people; with a power of ten from `LARGE` on."""
        form = f".{digits}{'f' if abs(self.mean) < LARGE else 'e'}"
        shown = f"{self.mean:{'+' if signed else ''}{form}}"
        return shown if self.half_width is None else f"{shown} ± {self.half_width:{form}}"


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of at least one value, with an interval if there are several finite ones."""
    several = len(values) > 1 and all(map(math.isfinite, values))
    return Estimate(statistics.fmean(values), interval_half_width(values) if several else None)


def read_arms(folder: Path) -> Arms:
    """The runs of a study, or those that a report's `study.json` lists by folder.

    Raises:
        InputError: the folder is neither, or none of its runs can be shown.
    """
    if not (folder / STUDY).exists():
        raise InputError(f"{folder} is no study: it has no {STUDY}")
    listed = json.loads((folder / STUDY).read_text()).get(FOLDERS)
    if listed is not None:
        runs = [read_arm_run(Path(path)) for path in listed]
    else:
        faults = {run.name: run.faults for run in read_study(folder).runs}
        runs = []
        for plan in read_plan(folder):
            path = folder / RUNS / plan["run"]["name"]
            if (path / "config.json").exists():
                run = read_arm_run(path, tuple(plan["run"]["analyses"]))
                runs.append(dataclasses.replace(run, faults=faults[path.name]))
    arms = Arms(runs)
    if not arms.names:
        reasons = "; ".join(f"{run.path.name} {run.fault}" for run in arms.faulty[:3]) or "none has begun"
        raise InputError(f"{folder} has no run to report of ({reasons}); let its command go on first")
    return arms


def read_arm_run(path: Path, analyses: tuple[str, ...] = ()) -> ArmRun:
    """One run folder.

    Raises:
        InputError: it is none.
    """
    if not (path / "config.json").exists():
        raise InputError(f"{path} is no run folder: it has no config.json")
    config = json.loads((path / "config.json").read_text())
    metrics = path / "metrics.jsonl"
    text = metrics.read_text() if metrics.exists() else ""
    state = run_state(path, analyses)
    return ArmRun(
        arm=config["config"]["name"],
        seed=config["config"]["seed"],
        path=path,
        config=config,
        lines=[json.loads(line) for line in text.split("\n")[:-1]],
        final=state.final,
        stopped=state.stopped,
    )


def run_folders(path: Path) -> list[Path]:
    """The run folders that a path stands for: itself, or the finished runs of a study.

    Raises:
        InputError: it is neither.
    """
    if (path / STUDY).exists():
        found = [path / RUNS / plan["run"]["name"] for plan in read_plan(path)]
        return [run for run in found if run_state(run).ended and not (run / STOPPED).exists()]
    if (path / "config.json").exists():
        return [path]
    raise InputError(f"{path} is no run folder and no study; name a folder that has config.json or study.json")


def _loss(run: ArmRun) -> float:
    assert run.final is not None
    return run.final["validation_loss"]
