"""Work in several processes: results in order, items taken only as they are needed, faults that come through."""

import os
from collections.abc import Iterator

import pytest

from attention_residuals import InputError
from attention_residuals.train.text.workers import ordered_map


def add(shared: int, item: int) -> int:
    if item < 0:
        raise InputError(f"item {item} is negative")
    return shared + item


def leave(shared: int, item: int) -> int:
    os._exit(shared)


@pytest.mark.dist
def test_results_keep_their_order_and_items_are_not_hoarded() -> None:
    taken = []

    def items() -> Iterator[int]:
        for item in range(50):
            taken.append(item)
            yield item

    ahead = 0
    results = []
    for item, result in ordered_map(add, 100, items(), 2):
        results.append(result)
        ahead = max(ahead, len(taken) - item)
    assert results == list(range(100, 150)) and ahead <= 4


def test_one_worker_is_this_process() -> None:
    assert list(ordered_map(lambda shared, item: os.getpid(), None, [1], 1)) == [(1, os.getpid())]


@pytest.mark.dist
def test_an_error_of_a_worker_comes_through() -> None:
    with pytest.raises(InputError, match="item -1 is negative"):
        list(ordered_map(add, 0, [1, -1, 2], 2))


@pytest.mark.dist
def test_a_worker_that_dies_is_told() -> None:
    with pytest.raises(InputError, match="one of 2 worker processes ended early"):
        list(ordered_map(leave, 3, [1, 2], 2))
