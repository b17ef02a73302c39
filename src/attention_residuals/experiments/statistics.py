"""Power laws of loss in compute, compute advantages, and intervals over few seeds. Knows no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from attention_residuals.experiments.results import interval_half_width

DRAWS = 4000
FEWEST_SIZES = 3
NORMAL_97_5 = 1.959964
"""Where 97.5 % of a standard normal distribution lie below."""


@dataclass(frozen=True)
class PowerLaw:
    """L = scale x C^-exponent."""

    scale: float
    exponent: float

    def loss(self, compute: float) -> float:
        """Loss at a compute C."""
        return self.scale * compute**-self.exponent

    def compute(self, loss: float) -> float:
        """The compute C that a loss takes."""
        return (self.scale / loss) ** (1 / self.exponent)


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval; infinite bounds where there is nothing to tell the spread from."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.low) or math.isinf(self.high):
            return f"{self.value:.4g} (no interval)"
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class Rung:
    """One size of a ladder: its compute, and the final losses of baseline and arm, seed by seed in the same order."""

    compute: float
    baseline: tuple[float, ...]
    arm: tuple[float, ...]

    def __post_init__(self) -> None:
        assert len(self.baseline) == len(self.arm) > 0


@dataclass(frozen=True)
class Scaling:
    """What the rungs of one arm say: its power law, the baseline's on the same runs, and the compute advantage.

    `advantage` is how many times the arm's compute the baseline would need for the arm's loss at the largest size, by
    the two fits. `measured` is the same without a law of the arm: from both mean losses at the largest size and the
    baseline's exponent. `worst_miss` is the largest distance of a mean loss of the arm from its fitted law, in nats.
    """

    law: PowerLaw
    baseline: PowerLaw
    scale: Interval
    exponent: Interval
    advantage: Interval
    measured: Interval
    worst_miss: float


def fit_power_law(compute: Sequence[float], losses: Sequence[float]) -> PowerLaw:
    """Least squares of log L on log C, as the paper fits (arXiv 2603.15031, Table 2); two points at least."""
    scale, exponent = _fit(np.log(compute), np.log(np.asarray(losses))[None])
    return PowerLaw(math.exp(scale[0]), exponent[0])


@np.errstate(over="ignore", invalid="ignore")  # nearly flat laws, of few short runs: infinite draws, and no interval
def scaling(rungs: Sequence[Rung], *, draws: int = DRAWS, seed: int = 0) -> Scaling | None:
    """Fit the means over seeds; None for fewer sizes than `FEWEST_SIZES`.

    Intervals are a bootstrap over seeds. Within each size seeds are drawn with replacement, the same ones for arm and
    baseline, and each size apart from the others; the deviations from the mean of the size are widened to what so few
    seeds call for (`widening`). They hold the noise of seeds alone: that a power law is the right form is not in them.
    """
    if len(rungs) < FEWEST_SIZES:
        return None
    log_compute = np.log([rung.compute for rung in rungs])
    arm, baseline = (_law(log_compute, [getattr(rung, name) for rung in rungs]) for name in ("arm", "baseline"))
    drawn = resample([(rung.baseline, rung.arm) for rung in rungs], draws, seed)
    if drawn is None:
        return _scaling(arm, baseline, rungs, *([math.nan, math.nan] for _ in range(4)))
    base_fit, arm_fit = (_fit(log_compute, np.log(side)) for side in drawn)
    advantages = _advantages(base_fit, arm_fit, float(log_compute.max()))
    return _scaling(arm, baseline, rungs, np.exp(arm_fit[0]), arm_fit[1], advantages, base_fit[1])


def advantage(arm: PowerLaw, baseline: PowerLaw, compute: float) -> float:
    """How many times `compute` the baseline needs for the arm's loss at `compute`."""
    return baseline.compute(arm.loss(compute)) / compute


def advantage_at(rung: Rung, exponent: Interval) -> Interval:
    """How many times the compute the baseline needs for the arm's loss, from the losses of both at one compute.

    The baseline's law goes through its own loss there: of the fits only its `exponent` is used. The interval is
    Student's of the paired logarithms of the losses, its width added to that of the exponent as independent errors are.
    """
    ratios = [math.log(base / arm) for base, arm in zip(rung.baseline, rung.arm, strict=True)]
    log_advantage = _mean(ratios) / exponent.value
    if len(ratios) < 2 or not math.isfinite(exponent.low):
        return Interval(float(np.exp(log_advantage)), -math.inf, math.inf)
    relative = max(exponent.high - exponent.value, exponent.value - exponent.low) / exponent.value
    half_width = math.hypot(interval_half_width(ratios) / exponent.value, log_advantage * relative)
    low, value, high = (float(np.exp(log_advantage + sign * half_width)) for sign in (-1, 0, 1))
    return Interval(value, low, high) if math.isfinite(high) else Interval(value, -math.inf, math.inf)


def resample(
    sizes: Sequence[tuple[Sequence[float], Sequence[float]]], draws: int, seed: int
) -> tuple[Float[np.ndarray, "draws sizes"], Float[np.ndarray, "draws sizes"]] | None:
    """Means over seeds of both sides of each size, drawn anew; None if a size has one seed, which tells no spread."""
    if any(len(one) < 2 for one, _ in sizes):
        return None
    generator = np.random.default_rng(seed)
    freedom = sum(len(one) - 1 for one, _ in sizes)
    sides: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for pair in sizes:
        seeds = len(pair[0])
        chosen = generator.integers(seeds, size=(draws, seeds))
        for side, values in zip(sides, pair, strict=True):
            array = np.asarray(values, float)
            deviations = (array - array.mean())[chosen].mean(1)
            side.append(array.mean() + widening(seeds, freedom) * deviations)
    return np.stack(sides[0], 1), np.stack(sides[1], 1)


def widening(seeds: int, freedom: int) -> float:
    """Factor on the drawn deviations of a mean over `seeds`.

    A plain bootstrap of n values has the variance of the mean too small by (n - 1) / n, and its percentiles are those
    of a normal distribution where Student's belongs: with three seeds a size it would cover far less than 95 %.
    `freedom` is the degrees of freedom of all sizes together, since a fit pools their noise.
    """
    from scipy.stats import t

    return math.sqrt(seeds / (seeds - 1)) * float(t.ppf(0.975, freedom)) / NORMAL_97_5


def _law(log_compute: np.ndarray, losses: Sequence[Sequence[float]]) -> PowerLaw:
    return fit_power_law(np.exp(log_compute).tolist(), [_mean(seeds) for seeds in losses])


def _mean(losses: Sequence[float]) -> float:
    return math.fsum(losses) / len(losses)


def _fit(
    log_compute: Float[np.ndarray, "sizes"], log_losses: Float[np.ndarray, "draws sizes"]
) -> tuple[Float[np.ndarray, "draws"], Float[np.ndarray, "draws"]]:
    """Log of the scale, and the exponent, of each row."""
    centred = log_compute - log_compute.mean()
    slope = log_losses @ centred / (centred @ centred)
    return log_losses.mean(1) - slope * log_compute.mean(), -slope


def _advantages(base: tuple[np.ndarray, np.ndarray], arm: tuple[np.ndarray, np.ndarray], at: float) -> np.ndarray:
    log_loss = arm[0] - arm[1] * at
    return np.exp((base[0] - log_loss) / base[1] - at)


def _scaling(
    arm: PowerLaw,
    baseline: PowerLaw,
    rungs: Sequence[Rung],
    scales: Sequence[float] | np.ndarray,
    exponents: Sequence[float] | np.ndarray,
    advantages: Sequence[float] | np.ndarray,
    baseline_exponents: Sequence[float] | np.ndarray,
) -> Scaling:
    misses = [abs(_mean(rung.arm) - arm.loss(rung.compute)) for rung in rungs]
    largest = max(rungs, key=lambda rung: rung.compute)
    return Scaling(
        law=arm,
        baseline=baseline,
        scale=percentiles(arm.scale, scales),
        exponent=percentiles(arm.exponent, exponents),
        advantage=percentiles(advantage(arm, baseline, largest.compute), advantages),
        measured=advantage_at(largest, percentiles(baseline.exponent, baseline_exponents)),
        worst_miss=max(misses),
    )


def quotient(one: Interval, other: Interval) -> Interval:
    """One positive estimate over another that is independent of it, by adding variances of their logarithms."""
    value = one.value / other.value
    if any(math.isinf(bound) or bound <= 0 for bound in (one.low, one.high, other.low, other.high)):
        return Interval(value, -math.inf, math.inf)
    below = math.hypot(math.log(one.value / one.low), math.log(other.high / other.value))
    above = math.hypot(math.log(one.high / one.value), math.log(other.value / other.low))
    return Interval(value, value * math.exp(-below), value * math.exp(above))


def percentiles(value: float, drawn: Sequence[float] | np.ndarray) -> Interval:
    """An estimate with the 2.5 % and 97.5 % percentiles of what was drawn; without an interval if that is no number."""
    low, high = np.percentile(np.asarray(drawn, float), [2.5, 97.5])
    if not (math.isfinite(low) and math.isfinite(high)):
        return Interval(value, -math.inf, math.inf)
    return Interval(value, float(low), float(high))
