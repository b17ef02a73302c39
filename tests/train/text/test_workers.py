"""Work in several processes: results in order, items taken only as they are needed, faults that come through."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

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


ORPHANS = """
import itertools, os
from attention_residuals.train.text.workers import ordered_map
from tests.train.text.test_workers import process_of

if __name__ == "__main__":
    for _, process in ordered_map(process_of, None, itertools.count(), 2):
        print(process, flush=True)
        os.kill(os.getpid(), 9)
"""


def process_of(shared: None, item: int) -> int:
    return os.getpid()


@pytest.mark.dist
def test_workers_do_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(ORPHANS)
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])}
    command = [sys.executable, tmp_path / "script.py"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    worker = int(done.stdout)
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    pytest.fail(f"worker {worker} is still there")


@pytest.mark.dist
def test_a_worker_that_dies_is_told() -> None:
    with pytest.raises(InputError, match="one of 2 worker processes ended early"):
        list(ordered_map(leave, 3, [1, 2], 2))
