"""Arms against a baseline on losses made by hand."""

from pathlib import Path

import pytest

from attention_residuals.experiments.studies.contest import Contest
from attention_residuals.experiments.studies.reading import read_study
from tests.experiments.studies.written import Written, write_study

LOSSES = {
    "standard": [2.00, 2.05, 1.95],
    "better": [1.90, 1.96, 1.84],
    "worse": [2.10, 2.14, 2.06],
    "noisy": [1.80, 2.30, 1.90],
    "lost": [1.0, None, None],
}
SECONDS = {"standard": 1.0, "better": 1.5, "worse": 1.0, "noisy": 1.0, "lost": 1.0}


@pytest.fixture
def contest(tmp_path: Path) -> Contest:
    runs = [
        Written(
            f"{arm}-{seed}",
            loss=loss,
            stopped=None if loss else "loss is nan",
            labels={"arm": arm, "seed": seed},
            seconds=(SECONDS[arm],) * 8,
        )
        for arm, losses in LOSSES.items()
        for seed, loss in enumerate(losses)
    ]
    write_study(tmp_path, "tiny", {}, runs)
    study = read_study(tmp_path)
    return Contest({arm: study.select(arm=arm) for arm in LOSSES})


def test_means_are_of_sound_runs(contest: Contest) -> None:
    assert contest.mean("standard") == pytest.approx(2.0)
    assert contest.mean("lost") == 1.0


def test_a_win_is_told_only_beyond_the_interval(contest: Contest) -> None:
    found = {arm: contest.wins(arm) for arm in contest.arms[1:-1]}
    assert found == {"better": True, "worse": False, "noisy": None}


def test_one_seed_wins_nothing(contest: Contest) -> None:
    found = contest.difference("lost")
    assert found is not None and found.over == "windows" and contest.wins("lost") is None


def test_ranks_go_by_paired_differences(contest: Contest) -> None:
    assert contest.ranking() == ["better", "standard", "noisy", "worse"], "one that lost seeds has no rank"
    difference = contest.difference("lost")
    assert difference is not None and difference.mean == pytest.approx(-1.0)


def test_speed_is_held_against_the_baseline(contest: Contest) -> None:
    found = contest.slowdown("better")
    assert found is not None and found.value == pytest.approx(1.5)


def test_nothing_is_said_of_arms_that_have_not_run() -> None:
    contest = Contest({"standard": [], "full": []})
    assert contest.mean("full") is None and contest.difference("full") is None and contest.wins("full") is None
    assert contest.slowdown("full") is None and contest.ranking() == []
