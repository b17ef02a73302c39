"""Walks over learning rates on curves with a known lowest point."""

import itertools
import math

import pytest

from attention_residuals import InputError
from attention_residuals.experiments.studies.tuning import RATES, START, walk


def explore(curve: list[float], start: int) -> tuple[list[int], int | None]:
    """Answer every question of the walk until it is over; the numbers in the order they were asked."""
    losses: dict[int, float] = {}
    while True:
        found = walk(losses, start, rates=RATES[: len(curve)])
        asked = [n for n in found.tried if n not in losses]
        assert list(found.tried[: len(losses)]) == list(losses), "what was tried once stays"
        if not asked:
            return list(losses), found.chosen
        losses |= {n: curve[n] for n in asked}


def test_a_start_at_the_lowest_point_takes_three_runs() -> None:
    assert explore([4, 3, 2, 3, 4], 2) == ([2, 1, 3], 2)


def test_a_walk_goes_downhill_a_run_a_step() -> None:
    assert explore([5, 4, 3, 2, 1, 2], 1) == ([1, 0, 2, 3, 4, 5], 4)


def test_the_ends_of_the_grid_have_one_neighbour() -> None:
    assert explore([1, 2, 3], 1) == ([1, 0, 2], 0)
    assert explore([3, 2, 1], 2) == ([2, 1], 2)


def test_equal_losses_stay_where_they_are() -> None:
    assert explore([1, 1, 1], 1)[1] == 1


def test_runs_that_stopped_send_it_to_lower_rates() -> None:
    assert explore([2, 3, math.inf, math.inf, math.inf], 3)[1] == 0


def test_a_baseline_that_cannot_be_trained_is_told() -> None:
    with pytest.raises(InputError, match=r"stopped at every learning rate down to 0\.0003125"):
        explore([math.inf] * 5, 3)


def test_answers_in_any_order_give_the_same_walk() -> None:
    assert walk({1: 1.0, 2: 2.0}, 2).tried == walk({2: 2.0}, 2).tried == (2, 1, 3)


def test_rates_lie_a_factor_of_two_apart_around_the_default() -> None:
    assert 5e-3 in RATES and RATES[START] == 1e-2
    assert all(high == 2 * low for low, high in itertools.pairwise(RATES))
