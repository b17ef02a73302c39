"""Learning-rate schedules: what every peak rate is multiplied by, as a function of the step alone."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from attention_residuals.errors import InputError


@dataclass(frozen=True)
class Schedule(ABC):
    """A frozen choice of schedule; its type says which one. Lengths are shares of a run, so they fit any run."""

    @abstractmethod
    def warmup_steps(self, steps: int) -> int:
        """How many of `steps` belong to the warm-up."""

    @abstractmethod
    def factor(self, step: int, steps: int) -> float:
        """What the peak rates are multiplied by at `step` (0-based) of `steps`."""


@final
@dataclass(frozen=True)
class Constant(Schedule):
    """The peak rate at every step."""

    def warmup_steps(self, steps: int) -> int:
        return 0

    def factor(self, step: int, steps: int) -> float:
        return 1.0


@final
@dataclass(frozen=True)
class Cosine(Schedule):
    """Linear warm-up over `warmup_share` of the run, then half a cosine down to `final_share` of the peak.

    Raises:
        InputError: a share outside [0, 1].
    """

    warmup_share: float = 0.05
    final_share: float = 0.05

    def __post_init__(self) -> None:
        _require_shares(self, "warmup_share", "final_share")

    def warmup_steps(self, steps: int) -> int:
        return _warmup_steps(self.warmup_share, steps)

    def factor(self, step: int, steps: int) -> float:
        warmup = self.warmup_steps(steps)
        if step < warmup:
            return (step + 1) / warmup
        progress = (step - warmup) / max(1, steps - warmup)
        return self.final_share + (1 - self.final_share) * 0.5 * (1 + math.cos(math.pi * progress))


@final
@dataclass(frozen=True)
class WSD(Schedule):
    """Warm-up, stable, decay: the peak until `decay_share` of the run is left, then down to `final_share` of it.

    The decay is 1 - sqrt(progress), which ends lower than a linear one of the same length (Hägele et al., 2024, arXiv
    2405.18392). The stable part does not know where the run ends, so a
    longer run can go on from it.

    Raises:
        InputError: a share outside [0, 1], or a warm-up and decay that together are longer than the run.
    """

    warmup_share: float = 0.05
    decay_share: float = 0.2
    final_share: float = 0.0

    def __post_init__(self) -> None:
        _require_shares(self, "warmup_share", "decay_share", "final_share")
        if self.warmup_share + self.decay_share > 1:
            raise InputError(
                f"warmup_share {self.warmup_share} and decay_share {self.decay_share} are more than the whole run; "
                "their sum must be at most 1, so shorten one of them"
            )

    def warmup_steps(self, steps: int) -> int:
        return _warmup_steps(self.warmup_share, steps)

    def factor(self, step: int, steps: int) -> float:
        warmup = self.warmup_steps(steps)
        if step < warmup:
            return (step + 1) / warmup
        decay = round(self.decay_share * steps)
        into = step - (steps - decay)
        if into <= 0:
            return 1.0
        return 1 - (1 - self.final_share) * math.sqrt(into / decay)


def _warmup_steps(share: float, steps: int) -> int:
    return max(1, round(share * steps))


def _require_shares(schedule: Schedule, *names: str) -> None:
    for name in names:
        value = getattr(schedule, name)
        if not 0 <= value <= 1:
            raise InputError(f"{name} is {value}; it must lie between 0 and 1, for example 0.05")
