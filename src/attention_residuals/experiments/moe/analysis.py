"""What the runs of the study say, from their folders alone. Knows no torch."""

import json
import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attention_residuals.experiments.results import Difference, interval_half_width, loss_after
from attention_residuals.experiments.studies.contest import Contest
from attention_residuals.experiments.studies.reading import (
    StudyRun,
    StudyRuns,
    contrast,
    read_study,
    sound_pairs,
    sound_together,
)

DENSE, MIXTURE = "dense", "mixture"
KINDS = (DENSE, MIXTURE)
SHARE_OF_ENDS = 10
"""The first and the last tenth of the steps stand for the beginning and the end of a run."""


@dataclass(frozen=True)
class MixtureResults:
    """The study's folder, read."""

    study: StudyRuns

    @property
    def arms(self) -> list[str]:
        """The baseline first."""
        return self.study.settings["arms"]

    @property
    def baseline(self) -> str:
        """The arm that the other is held against."""
        return self.arms[0]

    @property
    def arm(self) -> str:
        """The other one."""
        return self.arms[1]

    def runs(self, kind: str, arm: str) -> list[StudyRun]:
        """Compared runs of an arm in a kind of network."""
        return self.study.select(part="compare", kind=kind, arm=arm)

    def contest(self, kind: str) -> Contest:
        """Both arms in a kind of network."""
        return Contest({arm: self.runs(kind, arm) for arm in self.arms})

    def gain(self, kind: str) -> Difference | None:
        """Loss of the arm minus the baseline's in a kind of network, paired."""
        return self.contest(kind).difference(self.arm)

    def experts(self, arm: str) -> Difference | None:
        """Loss of the mixture minus the dense model's, both with the same stream, paired."""
        mixture, dense = sound_pairs(self.runs(MIXTURE, arm), self.runs(DENSE, arm))
        return contrast((1, mixture), (-1, dense))

    @property
    def interaction(self) -> Difference | None:
        """What the arm changes in the mixture minus what it changes in the dense model, seed by seed."""
        cells = ((MIXTURE, self.arm), (MIXTURE, self.baseline), (DENSE, self.arm), (DENSE, self.baseline))
        sides = sound_together(*(self.runs(kind, arm) for kind, arm in cells))
        return contrast(*zip((1, -1, -1, 1), sides, strict=True))

    def at_equal_time(self, kind: str) -> Difference | None:
        """As `gain`, but with the arm where it was when the baseline was done, both by their median step.

        Losses are those of the validations during training.
        """
        pairs = zip(*self.contest(kind).pairs(self.arm), strict=True)
        found = [value for mine, theirs in pairs if (value := _ahead(mine, theirs)) is not None]
        return Difference(statistics.fmean(found), interval_half_width(found), found, "seeds") if found else None

    @property
    def mixtures(self) -> list[StudyRun]:
        """Sound runs with experts, arm by arm."""
        return [run for arm in self.arms for run in self.runs(MIXTURE, arm) if run.sound]

    @property
    def even_peak(self) -> float:
        """The largest load over the mean that even routing would have by chance: see `chance_peak`."""
        settings, common = self.study.settings, self.study.settings["common"]
        tokens = common["batch_sequences"] * common["text"]["sequence_tokens"]
        return chance_peak(tokens, settings["experts"], settings["top_k"], settings["layers"])


def read_mixtures(folder: Path) -> MixtureResults:
    """Read the study, whether it is over or not.

    Raises:
        InputError: the folder is no study's.
    """
    return MixtureResults(read_study(folder))


def peaks(run: StudyRun) -> list[float]:
    """The largest load of an expert over the mean, in the worst layer, step by step."""
    return [step["expert_peak"] for step in run.steps if "expert_peak" in step]


def ends(values: Sequence[float]) -> tuple[float, float]:
    """Means of the first and the last tenth of at least one value."""
    count = max(1, len(values) // SHARE_OF_ENDS)
    return statistics.fmean(values[:count]), statistics.fmean(values[-count:])


def loads(run: StudyRun) -> dict[int, list[float]]:
    """Loads over their mean of every expert at the end of a run, by layer, 1-based; empty where it was not probed."""
    file = run.path / "probe.json"
    shares = json.loads(file.read_text()).get("expert_shares", {}) if file.exists() else {}
    return {_layer(name): [share * len(row) for share in row] for name, row in shares.items()}


def chance_peak(tokens: int, experts: int, top_k: int, layers: int) -> float:
    """The median of the largest load over the mean, of all layers, if every token chose `top_k` experts at random.

    A load is then binomial with mean tokens x top_k / experts; as a normal number it is exceeded by none of
    experts x layers independent ones in half of all cases.
    """
    share = top_k / experts
    spread = math.sqrt((1 - share) / (tokens * share))
    return 1 + spread * statistics.NormalDist().inv_cdf(0.5 ** (1 / (experts * layers)))


def _ahead(mine: StudyRun, theirs: StudyRun) -> float | None:
    curves = [
        [{**step, "seconds": step["step"] * run.step_seconds} for step in run.steps if "validation_loss" in step]
        for run in (mine, theirs)
    ]
    if not all(curves):
        return None
    last = curves[1][-1]
    reached = loss_after(curves[0], last["seconds"])
    return None if reached is None else reached - last["validation_loss"]


def _layer(router: str) -> int:
    """Of a router by its name: sublayers are numbered from 0, the second of a layer has the experts."""
    match = re.search(r"sublayers\.(\d+)\.", router)
    assert match is not None, router
    return int(match[1]) // 2 + 1
