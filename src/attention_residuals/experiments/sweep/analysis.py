"""What the runs of a sweep say, from their folders alone."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

from attention_residuals.experiments.results import Difference, interval_half_width
from attention_residuals.experiments.studies.contest import Contest
from attention_residuals.experiments.studies.reading import StudyRuns, read_study

Grid: TypeAlias = Sequence[Sequence[float | None]]
"""Rows by heads a layer, columns by features a layer; None where nothing counts."""


@dataclass(frozen=True)
class Optimum:
    """The cell of the lowest loss; `inside` tells whether all its neighbours were measured."""

    width_ratio: float
    head_ratio: float
    loss: float
    inside: bool


@dataclass(frozen=True)
class SweepResults:
    """A sweep's folder, read."""

    study: StudyRuns

    @property
    def arms(self) -> list[str]:
        """The baseline, then the other."""
        return self.study.settings["arms"]

    @property
    def width_ratios(self) -> list[float]:
        """Columns."""
        return self.study.settings["width_ratios"]

    @property
    def head_ratios(self) -> list[float]:
        """Rows."""
        return self.study.settings["head_ratios"]

    @cached_property
    def contests(self) -> list[list[Contest]]:
        """One for each cell, rows by heads a layer."""
        return [[self._contest(width, heads) for width in self.width_ratios] for heads in self.head_ratios]

    def losses(self, arm: str) -> Grid:
        """Mean loss of each cell."""
        return [[contest.mean(arm) for contest in row] for row in self.contests]

    def differences(self) -> Grid:
        """Paired difference of each cell."""
        found = [[contest.difference(self.arms[1]) for contest in row] for row in self.contests]
        return [[None if cell is None else cell.mean for cell in row] for row in found]

    def tally(self) -> tuple[int, int, int, int]:
        """Cells in which the arm is better, better beyond its interval, worse beyond it; and cells compared."""
        means = [value for row in self.differences() for value in row if value is not None]
        wins = [contest.wins(self.arms[1]) for row in self.contests for contest in row]
        return sum(mean < 0 for mean in means), wins.count(True), wins.count(False), len(means)

    def over_shapes(self) -> Difference | None:
        """The difference averaged over all cells, seed by seed: shapes of one seed share their batches, so that seeds
        are what varies. None with fewer than two seeds that are sound in every cell.
        """
        pairs = [contest.pairs(self.arms[1]) for row in self.contests for contest in row]
        losses = [{run.labels["seed"]: run.loss for run in side} for pair in pairs for side in pair]
        seeds = sorted(set.intersection(*map(set, losses)))
        if len(seeds) < 2:
            return None
        mine, theirs = losses[0::2], losses[1::2]
        by_seed = [
            statistics.fmean(one[seed] - other[seed] for one, other in zip(mine, theirs, strict=True)) for seed in seeds
        ]
        return Difference(statistics.fmean(by_seed), interval_half_width(by_seed), by_seed, "seeds")

    def _contest(self, width: float, heads: float) -> Contest:
        runs = self.study.select(part="compare", width_ratio=width, head_ratio=heads)
        return Contest({arm: [run for run in runs if run.labels["arm"] == arm] for arm in self.arms})


def optimum(losses: Grid, width_ratios: Sequence[float], head_ratios: Sequence[float]) -> Optimum | None:
    """The lowest cell; None for an empty grid."""
    found = [
        (math.inf if loss is None else loss, row, column)
        for row, values in enumerate(losses)
        for column, loss in enumerate(values)
    ]
    loss, row, column = min(found)
    if math.isinf(loss):
        return None
    inside = 0 < row < len(head_ratios) - 1 and 0 < column < len(width_ratios) - 1
    return Optimum(width_ratios[column], head_ratios[row], loss, inside)


def read_sweep(folder: Path) -> SweepResults:
    """Read a sweep, whether it is over or not.

    Raises:
        InputError: the folder is no study's.
    """
    return SweepResults(read_study(folder))
