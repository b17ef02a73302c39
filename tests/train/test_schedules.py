"""Schedules by their values."""

import math

import pytest

from attention_residuals import InputError
from attention_residuals.train import WSD, Constant, Cosine, Schedule

SCHEDULES = [Constant(), Cosine(), Cosine(0.0, 0.0), WSD(), WSD(0.5, 0.5), WSD(0.1, 0.0, 1.0)]


def test_cosine_by_hand() -> None:
    factors = [Cosine(0.1, 0.2).factor(step, 40) for step in range(41)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4] == 1.0 and factors[22] == pytest.approx(0.6) and factors[40] == pytest.approx(0.2)
    assert factors[13] == pytest.approx(0.2 + 0.8 * 0.5 * (1 + math.cos(math.pi / 4)))
    assert factors[4:] == sorted(factors[4:], reverse=True)


def test_wsd_by_hand() -> None:
    factors = [WSD(0.1, 0.4, 0.2).factor(step, 40) for step in range(41)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert set(factors[4:25]) == {1.0}
    assert factors[28] == pytest.approx(1 - 0.8 * 0.5) and factors[33] == pytest.approx(1 - 0.8 * 0.75)
    assert factors[40] == pytest.approx(0.2)


def test_wsd_decays_below_a_line() -> None:
    schedule = WSD(0.0, 1.0, 0.0)
    assert all(schedule.factor(step, 100) < 1 - step / 100 for step in range(1, 100))


def test_constant_is_constant() -> None:
    assert {Constant().factor(step, 7) for step in range(7)} == {1.0}


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_factors_are_positive_and_peak_at_one_after_warm_up(schedule: Schedule, steps: int) -> None:
    factors = [schedule.factor(step, steps) for step in range(steps)]
    warmup = schedule.warmup_steps(steps)
    assert all(0 < factor <= 1 for factor in factors)
    assert max(factors) == factors[max(0, warmup - 1)] == 1
    assert factors[:warmup] == sorted(factors[:warmup])


@pytest.mark.parametrize("share", [-0.1, 1.5, float("nan")])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (Cosine, "warmup_share"),
        (Cosine, "final_share"),
        (WSD, "warmup_share"),
        (WSD, "decay_share"),
        (WSD, "final_share"),
    ],
)
def test_a_share_outside_its_range_is_refused(kind: type[Schedule], name: str, share: float) -> None:
    with pytest.raises(InputError, match=f"{name} is {share}; it must lie between 0 and 1"):
        kind(**{name: share})


def test_phases_longer_than_the_run_are_refused() -> None:
    with pytest.raises(InputError, match=r"warmup_share 0\.6 and decay_share 0\.5 are more than the whole run"):
        WSD(0.6, 0.5)
