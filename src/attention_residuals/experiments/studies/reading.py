"""The runs of a study as read from their folders, which of them count, and paired differences. Knows no torch."""

import dataclasses
import itertools
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from attention_residuals.experiments.results import STEPS_TO_WARM_UP, Difference, interval_half_width
from attention_residuals.experiments.studies.state import RUNS, STUDY, TEXT, RunState, read_plan, run_state

MOST_SEEN = 0.25
"""Of the validation text, as a share; more of it in the training text makes a validation loss say nothing."""


@dataclass(frozen=True)
class StudyRun:
    """One planned run, ended or not.

    `plan` is its config as a plain object; `about` its `config.json`, empty before it has begun; `faults` say why it
    must stay out of fits and rankings, one sentence each.
    """

    name: str
    labels: dict[str, Any]
    plan: dict[str, Any]
    cost: float
    tokens: int
    state: RunState
    about: dict[str, Any] = field(default_factory=dict)
    faults: tuple[str, ...] = ()
    path: Path = Path()

    @property
    def sound(self) -> bool:
        """Whether it has finished and nothing speaks against it."""
        return self.state.final is not None and not self.faults

    @property
    def loss(self) -> float:
        """Final validation loss in nats a token, of a run that has finished."""
        assert self.state.final is not None
        return self.state.final["validation_loss"]

    @cached_property
    def steps(self) -> list[dict[str, Any]]:
        """The lines of its metrics, a step each."""
        return [line for line in _lines(self.path / "metrics.jsonl") if "step" in line]

    @cached_property
    def step_seconds(self) -> float:
        """Median seconds of a step; evaluation and saving are not in them."""
        marks = [0.0, *(step["seconds"] for step in self.steps)]
        times = [later - earlier for earlier, later in itertools.pairwise(marks)]
        return statistics.median(times[STEPS_TO_WARM_UP:] or times)

    @cached_property
    def window_losses(self) -> list[float]:
        """Loss of each window of the validation text."""
        return json.loads((self.path / "validation.json").read_text())["window_losses"]

    def file(self, name: str) -> Any:
        """The content of one of its JSON files."""
        return json.loads((self.path / name).read_text())


@dataclass(frozen=True)
class StudyRuns:
    """A study's folder: what was asked, what there is to say about its text, and its runs in the order of the plan."""

    folder: Path
    kind: str
    settings: dict[str, Any]
    text: dict[str, Any]
    runs: list[StudyRun]

    def select(self, **labels: Any) -> list[StudyRun]:
        """The runs that have all these labels."""
        return [run for run in self.runs if all(run.labels.get(key) == value for key, value in labels.items())]

    @property
    def kept_out(self) -> list[StudyRun]:
        """Runs with faults."""
        return [run for run in self.runs if run.faults]

    @property
    def waiting(self) -> list[StudyRun]:
        """Runs that have not ended."""
        return [run for run in self.runs if not run.state.ended]


def read_study(folder: Path) -> StudyRuns:
    """Read a study, whether it is over or not.

    Raises:
        InputError: the folder is no study's.
    """
    plans = read_plan(folder)
    asked = json.loads((folder / STUDY).read_text())
    text = json.loads((folder / TEXT).read_text()) if (folder / TEXT).exists() else {}
    runs = [_read_run(folder, plan) for plan in plans]
    return StudyRuns(folder, asked["kind"], asked["study"], text, judge(runs, text))


def judge(runs: Sequence[StudyRun], text: dict[str, Any]) -> list[StudyRun]:
    """The runs with what speaks against each of them."""
    texts = Counter(found for run in runs if (found := _text_of(run)) is not None)
    usual = texts.most_common(1)[0][0] if texts else None
    seen = text.get("seen_share", 0.0)
    return [_with_faults(run, usual, seen) for run in runs]


def difference(mine: Sequence[StudyRun], theirs: Sequence[StudyRun]) -> Difference | None:
    """Losses of `mine` minus `theirs`, paired by seed (both in the same order); None without a pair.

    Of one seed the interval is over windows of validation text, and says nothing about other seeds.
    """
    return contrast((1, mine), (-1, theirs))


def contrast(*sides: tuple[int, Sequence[StudyRun]]) -> Difference | None:
    """Sum of the sides' losses, each with its sign, seed by seed (all in the same order); as `difference` otherwise."""
    signs, runs = zip(*sides, strict=True)
    if not runs[0]:
        return None
    by_seed = [_signed_sum(signs, [run.loss for run in together]) for together in zip(*runs, strict=True)]
    if len(by_seed) > 1:
        return Difference(statistics.fmean(by_seed), interval_half_width(by_seed), by_seed, "seeds")
    of_windows = zip(*(side[0].window_losses for side in runs), strict=True)
    windows = [_signed_sum(signs, losses) for losses in of_windows]
    return Difference(by_seed[0], interval_half_width(windows), by_seed, "windows")


def sound_pairs(mine: Sequence[StudyRun], theirs: Sequence[StudyRun]) -> tuple[list[StudyRun], list[StudyRun]]:
    """Those of both sides whose seed is sound on both, by seed."""
    ours, others = sound_together(mine, theirs)
    return ours, others


def sound_together(*sides: Sequence[StudyRun]) -> list[list[StudyRun]]:
    """Those of each side whose seed is sound on all of them, by seed."""
    by_seed = [{run.labels["seed"]: run for run in side if run.sound} for side in sides]
    seeds = sorted(set.intersection(*(set(runs) for runs in by_seed)))
    return [[runs[seed] for seed in seeds] for runs in by_seed]


def _signed_sum(signs: Sequence[int], losses: Sequence[float]) -> float:
    return sum(sign * loss for sign, loss in zip(signs, losses, strict=True))


def _read_run(folder: Path, plan: dict[str, Any]) -> StudyRun:
    run = plan["run"]
    path = folder / RUNS / run["name"]
    config = path / "config.json"
    return StudyRun(
        name=run["name"],
        labels=run["labels"],
        plan=run["config"],
        cost=plan["cost"],
        tokens=plan["tokens"],
        state=run_state(path, tuple(run["analyses"])),
        about=json.loads(config.read_text()) if config.exists() else {},
        path=path,
    )


def _text_of(run: StudyRun) -> tuple[str, str, str] | None:
    data = run.about.get("data")
    return data and (data["fingerprint"], data["tokenizer"]["fingerprint"], data["split"])


def _with_faults(run: StudyRun, usual: tuple[str, str, str] | None, seen: float) -> StudyRun:
    faults = []
    if run.state.stopped is not None:
        faults.append(f"could not be trained to its end: {run.state.stopped}")
    if run.state.final is not None:
        entropy = run.about["data"]["unigram_entropy"]
        if not run.loss < entropy:
            faults.append(f"its loss of {run.loss:.4f} nats is not below the unigram entropy of {entropy:.4f}")
    if _text_of(run) not in (None, usual):
        faults.append(
            "its text, tokenizer or split is not that of the other runs, whose validation text it may have seen"
        )
    if seen > MOST_SEEN:
        faults.append(f"{seen:.0%} of its validation text stands word for word in its training text")
    return dataclasses.replace(run, faults=tuple(faults))


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
