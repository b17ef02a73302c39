"""Finished runs as read from their folders, and the statistics of comparing them. Reads files only; knows no torch."""

import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_residuals.errors import InputError

STEPS_TO_WARM_UP = 5
"""First steps left out of the speed: memory is still being taken from the system."""


@dataclass(frozen=True)
class Run:
    """One run folder: its config, its lines of `metrics.jsonl`, its final results."""

    name: str
    seed: int
    config: dict[str, Any]
    steps: list[dict[str, Any]]
    final: dict[str, Any]
    window_losses: list[float]
    probe: dict[str, Any]
    sample: str

    @property
    def validation_curve(self) -> list[dict[str, Any]]:
        """The steps at which validation loss was taken."""
        return [step for step in self.steps if "validation_loss" in step]

    @property
    def tokens_per_second(self) -> tuple[float, float, float]:
        """Lower quartile, median and upper quartile over the steps."""
        marks = [(step["tokens"], step["seconds"]) for step in self.steps]
        later = marks[min(STEPS_TO_WARM_UP, len(marks) - 2) :] if len(marks) > 1 else [(0, 0.0), *marks]
        rates = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in itertools.pairwise(later)]
        if len(rates) < 2:
            return rates[0], rates[0], rates[0]
        low, middle, high = statistics.quantiles(rates, n=4)
        return low, middle, high

    def validation_loss_after(self, seconds: float) -> float | None:
        """Validation loss when the run had worked that long, interpolated; None before its first validation."""
        return loss_after(self.validation_curve, seconds)


@dataclass(frozen=True)
class Comparison:
    """All runs of one comparison: models in the order they were named, the first being what others are held against."""

    models: list[str]
    seeds: list[int]
    runs: dict[tuple[str, int], Run]

    @property
    def reference(self) -> str:
        """The model that differences are taken from."""
        return self.models[0]

    def of(self, model: str) -> list[Run]:
        """The runs of one model, by seed."""
        return [self.runs[model, seed] for seed in self.seeds]

    def mean(self, model: str, key: str) -> float:
        """Mean over the seeds of a final result."""
        return statistics.fmean(run.final[key] for run in self.of(model))

    def difference(self, model: str) -> "Difference":
        """Validation loss of `model` minus that of the reference, paired by seed, or by window with one seed."""
        pairs = list(zip(self.of(model), self.of(self.reference), strict=True))
        by_seed = [mine.final["validation_loss"] - theirs.final["validation_loss"] for mine, theirs in pairs]
        if len(by_seed) > 1:
            return Difference(statistics.fmean(by_seed), interval_half_width(by_seed), by_seed, "seeds")
        mine, theirs = pairs[0]
        windows = [a - b for a, b in zip(mine.window_losses, theirs.window_losses, strict=True)]
        return Difference(by_seed[0], interval_half_width(windows), by_seed, "windows")


@dataclass(frozen=True)
class Difference:
    """A paired difference with its 95 % interval, taken over `over`: training seeds, or windows of validation text."""

    mean: float
    half_width: float
    by_seed: list[float]
    over: str


def loss_after(curve: Sequence[Mapping[str, Any]], seconds: float) -> float | None:
    """Validation loss along a curve of validated steps after `seconds` of work, interpolated; None before the first."""
    earlier = [step for step in curve if step["seconds"] <= seconds]
    later = [step for step in curve if step["seconds"] > seconds]
    if not earlier:
        return None
    if not later:
        return earlier[-1]["validation_loss"]
    a, b = earlier[-1], later[0]
    share = (seconds - a["seconds"]) / (b["seconds"] - a["seconds"])
    return a["validation_loss"] + share * (b["validation_loss"] - a["validation_loss"])


def interval_half_width(values: Sequence[float]) -> float:
    """Half of the 95 % confidence interval of the mean (Student's t); infinite for fewer than two values."""
    from scipy.stats import t

    if len(values) < 2:
        return math.inf
    error = statistics.stdev(values) / math.sqrt(len(values))
    return float(t.ppf(0.975, len(values) - 1)) * error


def read_comparison(folder: Path) -> Comparison:
    """Read every run of a comparison.

    Raises:
        InputError: the folder is no comparison, or a run in it has not ended.
    """
    listing = folder / "compare.json"
    if not listing.exists():
        raise InputError(f"{folder} is no comparison: it has no compare.json")
    plan = json.loads(listing.read_text())
    keys = [(model, seed) for seed in plan["seeds"] for model in plan["models"]]
    runs = {(model, seed): read_run(folder / run_folder_name(model, seed)) for model, seed in keys}
    return Comparison(plan["models"], plan["seeds"], runs)


def run_folder_name(model: str, seed: int) -> str:
    """Where, inside a comparison, the run of one model and seed lies."""
    return f"{model}-seed{seed}"


def read_run(folder: Path) -> Run:
    """Read one run that has ended.

    Raises:
        InputError: it has not.
    """
    metrics = folder / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    if not lines or not lines[-1].get("final") or not (folder / "sample.txt").exists():
        raise InputError(f"{folder} holds no finished run; run the comparison again into another folder")
    config = json.loads((folder / "config.json").read_text())
    return Run(
        name=config["config"]["name"],
        seed=config["config"]["seed"],
        config=config,
        steps=[line for line in lines if "step" in line],
        final=lines[-1],
        window_losses=json.loads((folder / "validation.json").read_text())["window_losses"],
        probe=json.loads((folder / "probe.json").read_text()),
        sample=(folder / "sample.txt").read_text(encoding="utf-8"),
    )
