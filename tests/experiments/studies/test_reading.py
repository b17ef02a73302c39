"""Which runs of a study count, and how they are paired."""

import json
from pathlib import Path
from typing import Any

import pytest

from attention_residuals import InputError
from attention_residuals.experiments.studies.reading import (
    StudyRun,
    contrast,
    difference,
    read_study,
    sound_pairs,
    sound_together,
)
from tests.experiments.studies.written import Written, write_study


def by_name(folder: Path) -> dict[str, StudyRun]:
    return {run.name: run for run in read_study(folder).runs}


def test_runs_that_do_not_count_are_told_apart(tmp_path: Path) -> None:
    runs = [
        Written("good", loss=2.0),
        Written("other", loss=2.1),
        Written("diverged", stopped="loss is nan at step 3"),
        Written("flat", loss=3.3),
        Written("foreign", loss=1.0, fingerprint="another"),
        Written("resplit", loss=1.0, split="2 of 9 documents held out"),
        Written("begun", steps=2),
        Written("waiting"),
    ]
    write_study(tmp_path, "tiny", {}, runs)
    found = by_name(tmp_path)
    assert found["good"].sound and found["other"].sound and found["good"].loss == 2.0
    assert found["diverged"].faults == ("could not be trained to its end: loss is nan at step 3",)
    assert found["flat"].faults == ("its loss of 3.3000 nats is not below the unigram entropy of 3.2000",)
    for name in ("foreign", "resplit"):
        assert "is not that of the other runs" in found[name].faults[0]
    for name in ("begun", "waiting"):
        assert not found[name].faults and not found[name].sound
    assert {run.name for run in read_study(tmp_path).waiting} == {"begun", "waiting"}
    assert {run.name for run in read_study(tmp_path).kept_out} == {"diverged", "flat", "foreign", "resplit"}


def test_all_runs_are_out_if_the_training_text_has_the_validation_text(tmp_path: Path) -> None:
    write_study(tmp_path, "tiny", {}, [Written("a", loss=2.0)], seen_share=0.5)
    assert by_name(tmp_path)["a"].faults == ("50% of its validation text stands word for word in its training text",)


def test_a_step_is_timed_by_its_median_after_warming_up(tmp_path: Path) -> None:
    write_study(tmp_path, "tiny", {}, [Written("a", loss=2.0, seconds=[9.0, 9, 9, 9, 9, 1, 2, 7])])
    assert by_name(tmp_path)["a"].step_seconds == pytest.approx(2.0)


def seeded(tmp_path: Path, losses: dict[str, list[float | None]]) -> dict[str, list[StudyRun]]:
    runs = [
        Written(f"{arm}-{seed}", loss=loss, stopped=None if loss else "nan", labels={"arm": arm, "seed": seed})
        for arm, values in losses.items()
        for seed, loss in enumerate(values)
    ]
    write_study(tmp_path, "tiny", {}, runs)
    study = read_study(tmp_path)
    return {arm: study.select(arm=arm) for arm in losses}


def test_seeds_are_paired_where_both_sides_are_sound(tmp_path: Path) -> None:
    arms = seeded(tmp_path, {"a": [2.0, None, 2.4], "b": [2.1, 2.2, 2.6]})
    mine, theirs = sound_pairs(arms["a"], arms["b"])
    assert [run.name for run in mine] == ["a-0", "a-2"] and [run.name for run in theirs] == ["b-0", "b-2"]
    found = difference(mine, theirs)
    assert found is not None and found.over == "seeds"
    assert found.mean == pytest.approx(-0.15) and found.by_seed == pytest.approx([-0.1, -0.2])
    assert found.half_width == pytest.approx(12.7062 * 0.05, rel=1e-4)


def test_one_pair_is_compared_window_by_window(tmp_path: Path) -> None:
    arms = seeded(tmp_path, {"a": [2.0], "b": [2.1]})
    found = difference(*sound_pairs(arms["a"], arms["b"]))
    assert found is not None and found.over == "windows" and found.mean == pytest.approx(-0.1)
    assert difference([], []) is None


def test_a_contrast_of_four_takes_the_seeds_that_all_have(tmp_path: Path) -> None:
    losses: dict[str, list[float | None]] = {"a": [1.0, 1.5, 2.0], "b": [1.2, 1.6, 2.5], "c": [2.0, None, 2.2]}
    arms = seeded(tmp_path, {**losses, "d": [2.3, 2.4, 2.6]})
    a, b, c, d = sound_together(*arms.values())
    assert [run.name for run in a] == ["a-0", "a-2"] and [run.name for run in d] == ["d-0", "d-2"]
    found = contrast((1, a), (-1, b), (-1, c), (1, d))
    assert found is not None and found.over == "seeds"
    assert found.by_seed == pytest.approx([(1.0 - 1.2) - (2.0 - 2.3), (2.0 - 2.5) - (2.2 - 2.6)])


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no study: it has no study\.json"):
        read_study(tmp_path)


def test_a_run_without_its_analyses_is_not_over(tmp_path: Path) -> None:
    write_study(tmp_path, "tiny", {}, [Written("a", loss=2.0)])
    file = tmp_path / "plan" / "a.json"
    plan: dict[str, Any] = json.loads(file.read_text())
    plan["run"]["analyses"] = ["depth"]
    file.write_text(json.dumps(plan))
    assert by_name(tmp_path)["a"].state.final is None
    (tmp_path / "runs" / "a" / "depth.json").write_text("{}")
    assert by_name(tmp_path)["a"].sound
