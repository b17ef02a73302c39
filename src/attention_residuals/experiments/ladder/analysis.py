"""What the runs of a ladder say, from their folders alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from attention_residuals.experiments.compute import matrix_parameters, training_operations
from attention_residuals.experiments.statistics import Interval, Rung, Scaling, quotient, scaling
from attention_residuals.experiments.studies.contest import Contest
from attention_residuals.experiments.studies.reading import StudyRuns, read_study


@dataclass(frozen=True)
class Size:
    """One size: its baseline's shape as a plain object, and compute and tokens of every run."""

    layers: int
    model: dict[str, Any]
    compute: float
    tokens: int
    parameters: int | None
    learning_rate: float

    @property
    def matrix_parameters(self) -> int:
        """Parameters that multiply every token."""
        return matrix_parameters(self.model)


@dataclass(frozen=True)
class LadderResults:
    """A ladder's folder, read."""

    study: StudyRuns

    @property
    def arms(self) -> list[str]:
        """The baseline first."""
        return self.study.settings["arms"]

    @property
    def baseline(self) -> str:
        """The arm that all others are held against."""
        return self.arms[0]

    @cached_property
    def sizes(self) -> list[Size]:
        """Sizes whose compared runs are planned, smallest first."""
        return [size for layers in self.study.settings["layers"] for size in self._size(layers)]

    def contest(self, size: Size) -> Contest:
        """All arms at one size."""
        return Contest({arm: self.study.select(part="compare", arm=arm, layers=size.layers) for arm in self.arms})

    def scaling(self, arm: str) -> Scaling | None:
        """Fit of an arm, and its advantage over the baseline on the same seeds; of the baseline: itself."""
        rungs = []
        for size in self.sizes:
            mine, theirs = self.contest(size).pairs(arm)
            if mine:
                losses = (tuple(run.loss for run in side) for side in (theirs, mine))
                rungs.append(Rung(size.compute, *losses))
        return scaling(rungs)

    def fits_hold(self, arm: str) -> bool | None:
        """Whether the laws of arm and baseline miss no mean loss by half of what lies between the arms at the largest
        size; otherwise an advantage by the fits tells more of the fits than of the arms. None: there are no fits.
        """
        found, theirs = self.scaling(arm), self.scaling(self.baseline)
        if found is None or theirs is None:
            return None
        difference = self._largest(arm).difference(arm)
        assert difference is not None
        return bool(max(found.worst_miss, theirs.worst_miss) < abs(difference.mean) / 2)

    def advantage(self, arm: str) -> Interval | None:
        """The compute advantage by both fits where they hold, else from the losses measured at the largest size."""
        found = self.scaling(arm)
        if found is None:
            return None
        return found.advantage if self.fits_hold(arm) else found.measured

    def time_advantage(self, arm: str) -> Interval | None:
        """The compute advantage over the slowdown at the largest size: how much more time the baseline would need."""
        found = self.advantage(arm)
        slowdown = None if found is None else self._largest(arm).slowdown(arm)
        return None if found is None or slowdown is None else quotient(found, slowdown)

    def _largest(self, arm: str) -> Contest:
        """All arms at the largest size at which there are runs to compare."""
        return [contest for size in self.sizes if (contest := self.contest(size)).pairs(arm)[0]][-1]

    def passes(self, size: Size) -> float | None:
        """How often the training text was gone through; None if nothing is known of the text yet."""
        about = self.study.text.get("about")
        return size.tokens / about["training_tokens"] if about else None

    def _size(self, layers: int) -> Iterator[Size]:
        runs = self.study.select(part="compare", layers=layers, arm=self.baseline)
        if runs:
            plan = runs[0].plan
            model, tokens = plan["model"], runs[0].tokens
            compute = training_operations(model, plan["text"]["sequence_tokens"], tokens)
            counts = [run.about["parameters"] for run in runs if run.about]
            rate = runs[0].labels["learning_rate"]
            yield Size(layers, model, compute, tokens, counts[0] if counts else None, rate)


def read_ladder(folder: Path) -> LadderResults:
    """Read a ladder, whether it is over or not.

    Raises:
        InputError: the folder is no study's.
    """
    return LadderResults(read_study(folder))
