"""Shapes of numbers whose shape is known."""

import math
import random

import pytest

from attention_residuals.experiments.arm_runs import estimate
from attention_residuals.experiments.dynamics import paper, shapes

DEPTH = 24


def test_growth_of_a_power() -> None:
    values = [3 * n**0.7 for n in range(1, DEPTH + 1)]
    assert shapes.slope(values) == pytest.approx(0.7)
    assert shapes.growth(values) == shapes.spread(values) == pytest.approx(DEPTH**0.7)


def test_spread_does_not_depend_on_order() -> None:
    assert shapes.spread([2.0, 8.0, 4.0]) == 4
    assert shapes.variation([1.0, 3.0]) == pytest.approx(0.5)
    assert shapes.variation([5.0] * 4) == 0


def test_a_saw_has_a_period() -> None:
    noise = random.Random(0)
    saw = [(1 + n % 4) * (1 + 0.05 * noise.random()) for n in range(DEPTH)]
    found = shapes.period(saw, 4)
    assert found is not None
    assert found.explained > 0.99 and found.p_value < 1e-6 and found.autocorrelation > 0.7
    other = shapes.period(saw, 5)
    assert other is not None and other.explained < 0.5


def test_growth_and_noise_have_none() -> None:
    noise = random.Random(1)
    for values in ([n**0.8 for n in range(1, DEPTH + 1)], [1 + noise.random() for _ in range(DEPTH)]):
        found = shapes.period(values, 4)
        assert found is not None and found.explained < 0.35 and found.p_value > 0.05
    assert found.by_chance == pytest.approx(3 / 23)


@pytest.mark.parametrize(("count", "length"), [(24, 1), (7, 4), (4, 4)])
def test_no_period_where_none_can_be_seen(count: int, length: int) -> None:
    assert shapes.period([1.0 + n for n in range(count)], length) is None


def test_gradients_that_vanished_have_no_finite_spread() -> None:
    gone = [0.0, 1e-3, 2e-3]
    assert shapes.growth(gone) == shapes.spread(gone) == math.inf
    assert math.isnan(shapes.slope(gone))
    assert estimate([math.inf, 3.0]).text() == "inf"


def test_constant_numbers_have_no_period() -> None:
    assert shapes.period([2.0] * DEPTH, 4) is None


def test_block_means() -> None:
    assert shapes.block_means([1.0, 4.0, 2.0, 8.0, 3.0], 2) == pytest.approx([2, 4, 3])


def test_sublayers_as_layers() -> None:
    assert shapes.per_layer([3.0, 4.0, 5.0, 12.0]) == [5, 13]
    assert shapes.after_layers([1.0, 2.0, 3.0, 4.0]) == [2, 4]
    assert shapes.layer_means([1.0, 2.0, 3.0, 5.0]) == [1.5, 4]


def test_the_paper_has_27_layers_and_the_shape_it_claims() -> None:
    for figure in (paper.MAGNITUDE, paper.GRADIENT):
        assert {len(values) for values in figure.values()} == {27}
    assert shapes.growth(paper.MAGNITUDE["standard"]) > 100
    found = shapes.period(paper.MAGNITUDE["block"], paper.BLOCK_LAYERS)
    assert found is not None and found.explained > 0.5 and found.p_value < 1e-3
    assert shapes.variation(paper.GRADIENT["block"]) < shapes.variation(paper.GRADIENT["standard"])
