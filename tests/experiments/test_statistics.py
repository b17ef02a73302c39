"""Fits, advantages and intervals where the truth is known."""

import math

import numpy as np
import pytest

from attention_residuals.experiments.statistics import (
    Interval,
    PowerLaw,
    Rung,
    advantage,
    fit_power_law,
    quotient,
    resample,
    scaling,
    widening,
)

COMPUTE = (1e12, 3e12, 8e12, 2e13, 5e13)
BASELINE, ARM = PowerLaw(9.0, 0.06), PowerLaw(8.8, 0.06)
PAPER_COMPUTE = (0.6916, 1.0405, 1.6937, 3.3528, 5.5974)
PAPER = {  # arXiv 2603.15031, table 2, and our least squares on its five points
    "standard": ((1.931, 1.895, 1.829, 1.766, 1.719), (1.8921, 0.0566)),
    "block": ((1.909, 1.875, 1.809, 1.746, 1.693), (1.8716, 0.0582)),
    "full": ((1.899, 1.874, 1.804, 1.737, 1.692), (1.8653, 0.0574)),
}


def rungs(noise: float, seeds: int, generator: np.random.Generator) -> list[Rung]:
    """Losses of both laws with noise that a seed puts on both alike, and some that it does not."""
    found = []
    for compute in COMPUTE:
        shared = generator.normal(0, 2 * noise, seeds)
        base, arm = (law.loss(compute) + shared + generator.normal(0, noise, seeds) for law in (BASELINE, ARM))
        found.append(Rung(compute, tuple(base), tuple(arm)))
    return found


def test_a_law_without_noise_is_found_exactly() -> None:
    found = scaling([Rung(c, (BASELINE.loss(c),) * 2, (ARM.loss(c),) * 2) for c in COMPUTE])
    assert found is not None
    assert found.law.scale == pytest.approx(8.8) and found.law.exponent == pytest.approx(0.06)
    truth = (9.0 / 8.8) ** (1 / 0.06)
    for interval in (found.advantage, found.measured):
        for value in (interval.value, interval.low, interval.high):
            assert value == pytest.approx(truth)
    assert found.worst_miss == pytest.approx(0, abs=1e-12)


def test_the_advantage_is_what_the_baseline_needs() -> None:
    needed = 2e13 * advantage(ARM, BASELINE, 2e13)
    assert BASELINE.loss(needed) == pytest.approx(ARM.loss(2e13))
    assert advantage(BASELINE, BASELINE, 2e13) == pytest.approx(1)


@pytest.mark.parametrize("name", PAPER)
def test_the_papers_points_give_the_papers_fits(name: str) -> None:
    losses, (scale, exponent) = PAPER[name]
    found = fit_power_law(PAPER_COMPUTE, losses)
    assert found.scale == pytest.approx(scale, abs=5e-4) and found.exponent == pytest.approx(exponent, abs=5e-4)


def test_the_papers_advantage_follows_from_its_rounded_fits() -> None:
    assert advantage(PowerLaw(1.870, 0.058), PowerLaw(1.891, 0.057), 5.6) == pytest.approx(1.254, abs=1e-3)


@pytest.mark.parametrize("seeds", [3, 5])
def test_intervals_cover_the_truth_about_95_times_in_100(seeds: int) -> None:
    generator, trials = np.random.default_rng(7), 400
    truths = {"exponent": ARM.exponent, "scale": ARM.scale, "advantage": advantage(ARM, BASELINE, COMPUTE[-1])}
    truths["measured"] = truths["advantage"]
    hits = dict.fromkeys(truths, 0)
    for trial in range(trials):
        found = scaling(rungs(0.004, seeds, generator), draws=400, seed=trial)
        assert found is not None
        for name, truth in truths.items():
            interval = getattr(found, name)
            hits[name] += interval.low <= truth <= interval.high
    for name, count in hits.items():
        assert 0.91 <= count / trials <= 0.985, (name, count)


def test_seeds_stay_paired_when_drawn() -> None:
    # What a seed adds to both sides alike must not widen the interval of their difference.
    base = (3.0, 3.5, 4.0)
    drawn = resample([(base, tuple(loss - 0.1 for loss in base))], 100, 0)
    assert drawn is not None
    assert np.ptp(drawn[0]) > 0.1
    assert np.allclose(drawn[0] - drawn[1], 0.1)


def test_drawn_means_spread_as_the_mean_does() -> None:
    values = (1.0, 2.0, 4.0)
    drawn = resample([(values, values)], 40_000, 0)
    assert drawn is not None
    error = np.std(values, ddof=1) / math.sqrt(3)
    wider = widening(3, 2) / math.sqrt(3 / 2)
    assert drawn[0].mean() == pytest.approx(7 / 3, abs=0.02)
    assert drawn[0].std() == pytest.approx(error * wider, rel=0.02)
    assert wider == pytest.approx(4.30265 / 1.959964, rel=1e-5)


def test_one_seed_gives_estimates_without_an_interval() -> None:
    found = scaling([Rung(c, (BASELINE.loss(c),), (ARM.loss(c),)) for c in COMPUTE])
    assert found is not None
    assert found.law.exponent == pytest.approx(0.06)
    for interval in (found.advantage, found.measured):
        assert math.isinf(interval.low) and math.isinf(interval.high)


def test_equal_losses_of_one_seed_are_no_advantage_without_an_interval() -> None:
    found = scaling([Rung(c, (BASELINE.loss(c),), (BASELINE.loss(c),)) for c in COMPUTE])
    assert found is not None and found.measured == Interval(1.0, -math.inf, math.inf)


def test_a_flat_law_gives_no_number_too_large_to_hold() -> None:
    found = scaling([Rung(c, (2.0, 2.0 + 1e-12 * n), (1.9, 1.8)) for n, c in enumerate(reversed(COMPUTE))])
    assert found is not None and math.isinf(found.measured.low) and math.isinf(found.measured.high)


def test_an_advantage_as_measured_needs_no_law_of_the_arm() -> None:
    # The arm begins behind, so that its own law promises more than there is.
    gains = (-0.02, 0.0, 0.02, 0.02, 0.02)
    sizes = [(c, BASELINE.loss(c), BASELINE.loss(c) - gain) for c, gain in zip(COMPUTE, gains, strict=True)]
    found = scaling([Rung(c, (base,) * 2, (arm,) * 2) for c, base, arm in sizes])
    assert found is not None
    assert BASELINE.loss(COMPUTE[-1] * found.measured.value) == pytest.approx(sizes[-1][2])
    assert found.advantage.value > found.measured.value


def test_two_sizes_make_no_law() -> None:
    assert scaling([Rung(c, (3.0, 3.1), (2.9, 3.0)) for c in COMPUTE[:2]]) is None


def test_a_quotient_adds_variances_of_logarithms() -> None:
    found = quotient(Interval(2.0, 1.0, 4.0), Interval(1.0, 0.5, 2.0))
    assert found.value == 2.0
    assert found.high / found.value == pytest.approx(2 ** math.sqrt(2))
    assert found.value / found.low == pytest.approx(2 ** math.sqrt(2))
    assert math.isinf(quotient(Interval(2.0, -math.inf, math.inf), Interval(1.0, 0.9, 1.1)).low)
