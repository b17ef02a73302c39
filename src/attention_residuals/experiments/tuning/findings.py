"""What tunings came to, read from the files of a study, and paired differences of it. Knows no torch."""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_residuals.errors import InputError
from attention_residuals.experiments.results import Difference, interval_half_width

STUDY = "tuning-study.json"
BASE = "base.json"
REFERENCE = "queries"
WITHOUT_DEPTH = (("queries+norms", "norms"), ("queries+lora", "lora"), ("all", "all, no depth"))
"""Arms that differ by their depth queries alone."""


@dataclass(frozen=True)
class TuningResults:
    """All runs of a study.

    Args:
        study: its settings, as plain JSON.
        tried: by arm the runs of the first seed, by rate.
        chosen: by arm and seed the runs at the best rate.
    """

    study: Mapping[str, Any]
    tried: Mapping[str, list[dict[str, Any]]]
    chosen: Mapping[str, list[dict[str, Any]]]

    def difference(self, arm: str, reference: str = REFERENCE) -> Difference:
        """Final loss minus that of another arm, paired by seed, or by window with one seed."""
        return self._paired(self.chosen[arm], self.chosen[reference])

    def gain(self, arm: str) -> Difference:
        """Final loss minus that before tuning, by seed; with one seed there is no interval, as windows are not kept."""
        values = [run["after"] - run["before"] for run in self.chosen[arm]]
        return Difference(statistics.fmean(values), interval_half_width(values), values, "seeds")

    def _paired(self, mine: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> Difference:
        pairs = list(zip(mine, theirs, strict=False))
        values = [one["after"] - other["after"] for one, other in pairs]
        if len(values) > 1:
            return Difference(statistics.fmean(values), interval_half_width(values), values, "seeds")
        one, other = pairs[0]
        windows = [a - b for a, b in zip(one["window_losses"], other["window_losses"], strict=True)]
        return Difference(values[0], interval_half_width(windows), values, "windows")


def read_results(folder: Path) -> TuningResults:
    """The runs of a study, as far as there are any.

    Raises:
        InputError: the folder is of no study, or has no run yet.
    """
    try:
        study = json.loads((folder / STUDY).read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{folder} is no study of tuning ({error}); begin one there") from error
    runs = [json.loads(path.read_bytes()) for path in sorted((folder / "runs").glob("*.json"))]
    whole = [run for run in runs if run["after"] is not None]
    if not whole:
        raise InputError(f"{folder} has no run yet that came to its end; the same command goes on")
    first = min(run["seed"] for run in runs)
    tried: dict[str, list[dict[str, Any]]] = {}
    chosen: dict[str, list[dict[str, Any]]] = {}
    for arm in sorted({run["arm"] for run in whole}, key=_order):
        tried[arm] = sorted((run for run in runs if run["arm"] == arm and run["seed"] == first), key=_rate)
        best = min((run for run in tried[arm] if run["after"] is not None), key=lambda run: run["after"])["x"]
        chosen[arm] = [run for run in whole if run["arm"] == arm and run["x"] == best]
        chosen[arm].sort(key=lambda run: run["seed"])
    return TuningResults(study, tried, chosen)


def at_an_end(results: TuningResults, arm: str) -> bool:
    """Whether the best rate of an arm is the first or the last that was tried, so that a better one may lie beyond."""
    tried = [run["x"] for run in results.tried[arm] if run["after"] is not None]
    return results.chosen[arm][0]["x"] in (min(tried), max(tried))


def rates_told(rates: Mapping[str, float]) -> str:
    """Rates in words."""
    short = {"depth_rate": "queries", "norm_rate": "norms", "rate": "others"}
    return ", ".join(f"{short[name]} {value:.2g}" for name, value in rates.items())


def _rate(run: Mapping[str, Any]) -> float:
    return run["x"]


def _order(arm: str) -> tuple[bool, str]:
    known = ("queries", "norms", "lora", "queries+norms", "queries+lora", "all", "all, no depth")
    return arm not in known, f"{known.index(arm)}" if arm in known else arm
