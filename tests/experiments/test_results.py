"""Statistics of a comparison, on numbers made by hand."""

import json
import math
from pathlib import Path

import pytest

from attention_residuals import InputError
from attention_residuals.experiments.report import sentence
from attention_residuals.experiments.results import (
    Comparison,
    Difference,
    Run,
    interval_half_width,
    read_comparison,
    read_run,
)


def run(name: str, seed: int, loss: float, windows: list[float]) -> Run:
    steps = [
        {"step": n, "tokens": 100 * n, "seconds": 2.0 * n, "loss": 3.0, "validation_loss": 4.0 - n} for n in range(1, 4)
    ]
    return Run(name, seed, {}, steps, {"validation_loss": loss}, windows, {}, "")


def comparison(seeds: list[int], losses: dict[str, list[float]]) -> Comparison:
    runs = {(name, s): run(name, s, losses[name][n], [1.0, 2.0]) for n, s in enumerate(seeds) for name in losses}
    return Comparison(list(losses), seeds, runs)


def test_the_interval_is_students() -> None:
    # Mean of 1, 2, 3: standard error 1/sqrt(3), t with 2 degrees of freedom 4.3027 at 97.5 %.
    assert interval_half_width([1.0, 2.0, 3.0]) == pytest.approx(4.30265 / math.sqrt(3), rel=1e-5)
    assert interval_half_width([1.0]) == math.inf


def test_differences_are_paired_by_seed() -> None:
    found = comparison([0, 1, 2], {"standard": [1.0, 2.0, 3.0], "full": [0.9, 1.9, 2.9]}).difference("full")
    assert found.mean == pytest.approx(-0.1) and found.over == "seeds"
    assert found.half_width == pytest.approx(0, abs=1e-9), "the spread between seeds cancels in the pairs"


def test_one_seed_is_compared_window_by_window() -> None:
    runs = {("a", 0): run("a", 0, 1.5, [1.0, 2.0]), ("b", 0): run("b", 0, 1.3, [0.9, 1.7])}
    found = Comparison(["a", "b"], [0], runs).difference("b")
    assert found.mean == pytest.approx(-0.2) and found.over == "windows"
    assert found.half_width == pytest.approx(interval_half_width([-0.1, -0.3]))


@pytest.mark.parametrize(
    ("mean", "words"),
    [(-0.1, "ends with a lower loss"), (0.1, "ends with a higher loss"), (0.01, "cannot be told apart")],
)
def test_words_are_no_stronger_than_the_interval(mean: float, words: str) -> None:
    assert words in sentence(Difference(mean, 0.05, [mean], "seeds"), "full", "standard")


def test_loss_at_a_time_is_interpolated() -> None:
    mine = run("a", 0, 1.0, [])
    assert mine.validation_loss_after(3.0) == pytest.approx(2.5)
    assert mine.validation_loss_after(1.0) is None
    assert mine.validation_loss_after(100.0) == 1.0


def test_speed_is_the_median_over_steps() -> None:
    assert run("a", 0, 1.0, []).tokens_per_second[1] == pytest.approx(50)


def test_folders_that_hold_no_comparison_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no compare\.json"):
        read_comparison(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    with pytest.raises(InputError, match="holds no finished run"):
        read_run(tmp_path)
