"""Alarms on curves made for them: they fire where they should, stay silent elsewhere, and do not repeat themselves."""

import math
import random
from collections.abc import Iterable
from typing import Any

import pytest

from attention_residuals import InputError
from attention_residuals.train import AlarmLimits, Alarms, Probe

LIMITS = AlarmLimits(window_steps=32, quiet_steps=50)


def healthy_losses(steps: int = 300) -> list[float]:
    """A loss that falls from ln(256) to 1.5 with the noise of small batches."""
    noise = random.Random(0)
    return [1.5 + 4 * math.exp(-step / 40) + noise.gauss(0, 0.08) for step in range(steps)]


def said(losses: Iterable[float], norms: Iterable[float] | None = None, warmup: int = 10) -> list[str]:
    alarms = Alarms(256, warmup, LIMITS)
    losses = list(losses)
    pairs = zip(losses, norms or [1.0] * len(losses), strict=True)
    records = [{"step": n, "loss": loss, "gradient_norm": norm} for n, (loss, norm) in enumerate(pairs, start=1)]
    return [sentence for record in records for sentence in alarms.of_record(record)]


def test_a_healthy_run_is_silent() -> None:
    noise = random.Random(1)
    assert said(healthy_losses(), [math.exp(noise.gauss(0, 0.3)) for _ in range(300)]) == []


def test_a_flat_curve_is_silent_however_little_it_moves() -> None:
    assert said([2.0] * 60 + [2.01] * 60) == []


def test_a_loss_above_equal_odds_is_told_after_warm_up_and_not_at_every_step() -> None:
    sentences = said([6.0] * 80, warmup=10)
    assert [sentence.split(":")[0] for sentence in sentences] == ["step 11", "step 61"]
    assert "loss 6.000 is above ln(256) = 5.545" in sentences[0]
    assert said([6.0] * 80, warmup=80) == said([5.5] * 80) == []


def test_a_loss_spike_is_told_once_with_its_numbers() -> None:
    losses = healthy_losses()
    losses[200:205] = [4.0] * 5
    (sentence,) = said(losses)
    assert sentence.startswith("step 201: loss 4 is far above 1.5")
    assert sentence.endswith("median and spread of the 32 steps before")


def test_one_spike_does_not_hide_the_next() -> None:
    losses = healthy_losses()
    losses[200], losses[255] = 5.0, 4.0
    assert [sentence.split(":")[0] for sentence in said(losses)] == ["step 201", "step 256"]


def test_a_falling_loss_is_no_spike() -> None:
    assert said([5.0] * 40 + [1.0] * 40) == []


def test_a_gradient_norm_spike_is_told() -> None:
    norms = [1.0 + 0.1 * (n % 3) for n in range(100)]
    norms[70] = 50.0
    (sentence,) = said([2.0] * 100, norms)
    assert sentence.startswith("step 71: gradient norm 50 is far above 1.1 ± 0.15")
    norms[70] = 3.0  # many spreads, but not three times the median
    assert said([2.0] * 100, norms) == []


def test_too_short_a_past_says_nothing() -> None:
    assert said([2.0] * 15 + [5.0]) == []
    assert len(said([2.0] * 16 + [5.0])) == 1


def test_numbers_that_are_none_are_left_out_of_the_past() -> None:
    assert len(said([2.0] * 16 + [float("nan")] * 16 + [5.0])) == 1


NAMES = ["embedding", "output 1", "output 2"]
ONE_SIDED = Probe(depth_weights=[[1.0], [0.02, 0.98], [0.2, 0.5, 0.3], [0.96, 0.02, 0.02]], source_names=NAMES)


def test_a_read_of_one_source_alone_is_told_with_its_number_and_source() -> None:
    alarms = Alarms(256, 0, LIMITS)
    assert alarms.of_probe(ONE_SIDED, 100) == [
        "step 100: the read of sublayer 1 puts 0.980 of its weight on 'output 1', one of 2 sources",
        "step 100: the output read puts 0.960 of its weight on 'embedding', one of 3 sources",
    ]
    assert alarms.of_probe(ONE_SIDED, 149) == []
    assert len(alarms.of_probe(ONE_SIDED, 150)) == 2


def test_even_reads_and_streams_without_reads_are_silent() -> None:
    alarms = Alarms(256, 0, LIMITS)
    assert alarms.of_probe(Probe(depth_weights=[[1.0], [0.5, 0.5]], source_names=NAMES), 1) == []
    assert alarms.of_probe(Probe(), 1) == []


def test_a_read_counts_by_shares_of_its_weight() -> None:
    alarms = Alarms(256, 0, LIMITS)
    both_open, one_open = Probe(depth_weights=[[1.0], [0.96, 0.98]]), Probe(depth_weights=[[1.0], [0.0, 0.5]])
    both_open.source_names = one_open.source_names = NAMES
    assert alarms.of_probe(both_open, 1) == []
    assert len(alarms.of_probe(one_open, 2)) == 1
    assert alarms.of_probe(Probe(depth_weights=[[1.0], [0.0, 0.0]], source_names=NAMES), 300) == []


def test_each_read_has_a_voice_of_its_own() -> None:
    alarms = Alarms(256, 0, LIMITS)
    first = Probe(depth_weights=[[1.0], [0.02, 0.98], [0.2, 0.5, 0.3]], source_names=NAMES)
    second = Probe(depth_weights=[[1.0], [0.02, 0.98], [0.0, 0.0, 1.0]], source_names=NAMES)
    assert len(alarms.of_probe(first, 1)) == 1
    assert [sentence[:23] for sentence in alarms.of_probe(second, 2)] == ["step 2: the output read"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("window_steps", 0),
        ("quiet_steps", 0),
        ("spreads", 0.0),
        ("loss_rise", -1.0),
        ("norm_rise", math.nan),
        ("top_weight", 0.0),
        ("top_weight", 1.5),
    ],
)
def test_limits_that_cannot_be_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"{name} is {value}"):
        AlarmLimits(**{name: value})
