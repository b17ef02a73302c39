"""Arms against a baseline at one size: means, paired differences, slowdowns, ranks. Knows no torch."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from attention_residuals.experiments.results import Difference, interval_half_width
from attention_residuals.experiments.statistics import Interval
from attention_residuals.experiments.studies.reading import StudyRun, difference, sound_pairs


@dataclass(frozen=True)
class Contest:
    """The compared runs of each arm at one size, the baseline's first."""

    runs: Mapping[str, Sequence[StudyRun]]

    @property
    def arms(self) -> list[str]:
        """All of them, the baseline first."""
        return list(self.runs)

    @property
    def baseline(self) -> str:
        """The arm that all others are held against."""
        return self.arms[0]

    def sound(self, arm: str) -> list[StudyRun]:
        """Runs of an arm that count."""
        return [run for run in self.runs[arm] if run.sound]

    def pairs(self, arm: str) -> tuple[list[StudyRun], list[StudyRun]]:
        """Sound runs of an arm and of the baseline with the same seeds."""
        return sound_pairs(self.runs[arm], self.runs[self.baseline])

    def mean(self, arm: str) -> float | None:
        """Mean loss of the runs that count."""
        losses = [run.loss for run in self.sound(arm)]
        return statistics.fmean(losses) if losses else None

    def difference(self, arm: str) -> Difference | None:
        """Loss of the arm minus the baseline's, paired."""
        return difference(*self.pairs(arm))

    def slowdown(self, arm: str) -> Interval | None:
        """Median step seconds of the arm over the baseline's: geometric mean over paired seeds, with its interval."""
        mine, theirs = self.pairs(arm)
        logs = [math.log(one.step_seconds / other.step_seconds) for one, other in zip(mine, theirs, strict=True)]
        if not logs:
            return None
        mean, half = statistics.fmean(logs), interval_half_width(logs)
        if math.isinf(half):
            return Interval(math.exp(mean), -math.inf, math.inf)
        return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))

    def ranking(self) -> list[str]:
        """Arms by their mean paired difference to the baseline, best first.

        Only those with as many sound pairs as any arm has: one that lost the hard seeds must not rank by the easy ones.
        """
        pairs = {arm: len(self.pairs(arm)[0]) for arm in self.arms}
        most = max(pairs.values())
        found = {arm: self.difference(arm) for arm in self.arms if most and pairs[arm] == most}
        means = {arm: value.mean for arm, value in found.items() if value is not None}
        return sorted(means, key=lambda arm: means[arm])

    def wins(self, arm: str) -> bool | None:
        """Whether an arm's loss is lower than the baseline's; None where its interval over seeds does not tell."""
        found = self.difference(arm)
        if found is None or found.over != "seeds" or abs(found.mean) <= found.half_width:
            return None
        return found.mean < 0
