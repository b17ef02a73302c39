"""The table says what the scores of its runs say."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from attention_residuals import InputError
from attention_residuals.experiments.document import Part, Table
from attention_residuals.experiments.evaluation.scores import Measure, difference, most_telling, read_scored
from attention_residuals.experiments.evaluation.table import evaluation_parts, write_evaluation_report


def task(right: list[int], **changes: Any) -> dict[str, Any]:
    """A task of which these questions were answered rightly."""
    share = sum(right) / len(right)
    error = math.sqrt(share * (1 - share) / (len(right) - 1))
    return {
        "version": 1,
        "few_shot": 0,
        "items": len(right),
        "chance": 0.25,
        "metrics": {"acc,none": {"value": share, "stderr": error, "higher_is_better": True}},
        "by_item": {"acc,none": right},
        "questions": "same",
        "limit": None,
        "part": False,
        "shortened": 0,
        **changes,
    }


def words(nats: list[float]) -> dict[str, Any]:
    perplexity = {"value": math.exp(-sum(nats) / len(nats)), "stderr": 0.5, "higher_is_better": False}
    metrics = {"perplexity,none": perplexity}
    return task([0, 1], metrics=metrics, by_item={"perplexity,none": nats}, items=len(nats), dropped=2)


def folder(path: Path, **tasks: Any) -> Path:
    path.mkdir(parents=True)
    about = {"step": 5, "context_tokens": 128, "text": None, "tasks": tasks}
    (path / "evaluation.json").write_text(json.dumps(about))
    return path


def tables(parts: list[Part]) -> list[Table]:
    return [part for part in parts if isinstance(part, Table)]


def text(parts: list[Part]) -> str:
    return "\n".join(part.markdown() for part in parts)


def test_a_task_is_judged_by_its_most_telling_measure() -> None:
    names = [
        ("a", "acc,none"),
        ("a", "acc_mutual_info,none"),
        ("b", "perplexity,none"),
        ("b", "acc,none"),
        ("c", "f1,x"),
    ]
    found = most_telling(Measure(*name) for name in names)
    assert [measure.key for measure in found] == ["acc_mutual_info,none", "perplexity,none", "f1,x"]


def test_runs_that_were_never_evaluated_add_nothing(tmp_path: Path) -> None:
    assert evaluation_parts([tmp_path]) == []


def test_a_difference_is_paired_by_question(tmp_path: Path) -> None:
    one, other = [0, 0, 1, 0, 1, 0, 0, 1] * 10, [1, 0, 1, 0, 1, 1, 0, 1] * 10
    runs = [folder(tmp_path / "one", choice=task(one)), folder(tmp_path / "other", choice=task(other))]
    found = difference(
        Measure("choice", "acc,none"), *([scored] for path in reversed(runs) if (scored := read_scored(path)))
    )
    assert found is not None and found.over == "questions" and found.mean == pytest.approx(0.25)
    spread = math.sqrt(0.25 * 0.75 * 80 / 79 / 80)  # a quarter of the questions differ by one
    assert found.half_width == pytest.approx(1.99 * spread, rel=1e-3)
    parts = evaluation_parts(runs)
    scores, differences = tables(parts)
    assert list(scores.header) == ["task and measure", "questions", "chance", "one", "other"]
    assert list(scores.rows) == [["choice, acc", "80", "25 %", "37.5 ± 5.4 %", "62.5 ± 5.4 %"]]
    assert list(differences.header) == ["difference to one", "other"]
    assert list(differences.rows) == [["choice, acc", "+25.0 ± 9.7 points"]]
    assert "Of 1 task, other is better than one on 1, worse on 0, and cannot be told apart on 0." in text(parts)
    assert "nothing about other seeds" in text(parts)


def test_perplexities_are_shown_and_compared_in_nats(tmp_path: Path) -> None:
    runs = [
        folder(tmp_path / "one", last=words([-3.0, -2.0, -4.0])),
        folder(tmp_path / "other", last=words([-2.5, -1.5, -3.5])),
    ]
    parts = evaluation_parts(runs)
    scores, differences = tables(parts)
    assert list(scores.rows[0])[3:] == ["-3.00 ± 0.58", "-2.50 ± 0.58"]
    assert differences.rows[0][1] == "+0.500 ± 0.000 nats"
    assert "other is better than one on 1" in text(parts) and "training text too: 2 questions" in text(parts)


@pytest.mark.parametrize("change", [{"questions": "others"}, {"version": 2}, {"few_shot": 5}, {"limit": 80}])
def test_other_questions_are_not_compared(tmp_path: Path, change: dict[str, Any]) -> None:
    right = [0, 1] * 40
    runs = [folder(tmp_path / "one", choice=task(right)), folder(tmp_path / "other", choice=task(right, **change))]
    assert tables(evaluation_parts(runs))[1].rows == [["choice, acc", "-"]]
    assert "other and one have no questions in common." in text(evaluation_parts(runs))


def planned(study: Path, name: str, labels: dict[str, Any], **tasks: Any) -> Path:
    (study / "plan").mkdir(parents=True, exist_ok=True)
    (study / "plan" / f"{name}.json").write_text(json.dumps({"number": 0, "run": {"name": name, "labels": labels}}))
    return folder(study / "runs" / name, **tasks)


def test_runs_of_a_study_stand_by_arm_and_size_and_are_paired_by_seed(tmp_path: Path) -> None:
    shares = {("standard", 0): 10, ("block", 0): 14, ("standard", 1): 12, ("block", 1): 18}
    runs = []
    for size in ("4 layers", "8 layers"):
        for (arm, seed), right in shares.items():
            # A study says of a run also what follows from its arm, which must not set the arms apart.
            labels = {
                "part": "compare",
                "arm": arm,
                "size": size,
                "seed": seed,
                "stream": f"{arm}3",
                "active": len(arm),
            }
            answers = [1] * right + [0] * (40 - right)
            runs.append(planned(tmp_path, f"{arm}-{size}-{seed}", labels, choice=task(answers)))
    parts = evaluation_parts(runs)
    assert text(parts).startswith("size 4 layers:") or "\nsize 4 layers:" in text(parts)
    assert "size 8 layers:" in text(parts) and "paired by seed" in text(parts)
    scores, differences, *larger = tables(parts)
    assert len(larger) == 2
    assert list(scores.rows[0])[3:5] == ["27.5 ± 2.5 %", "40.0 ± 5.0 %"]
    assert differences.rows[0][1] == f"+12.5 ± {12.706 * 2.5:.1f} points"  # Student's t with one degree of freedom


def test_groups_stand_above_their_parts_and_beside_the_paper(tmp_path: Path) -> None:
    whole = {**task([0, 1] * 10), "by_item": {}, "questions": None}
    run = folder(tmp_path / "run", mmlu=whole, mmlu_law=task([0, 1] * 10, part=True, shortened=7), other=task([0, 1]))
    above, below = tables(evaluation_parts([run]))
    assert [row[0] for row in above.rows] == ["mmlu, acc", "other, acc"] and [row[0] for row in below.rows] == [
        "mmlu_law, acc"
    ]
    assert above.header[-1] == "paper, Table 3" and [row[-1] for row in above.rows] == ["73.5 → 74.6", ""]
    assert below.summary == "Tasks of the groups above" and below.header[-1] != "paper, Table 3"
    assert "under a protocol of its own" in text(evaluation_parts([run]))
    assert "longer than its context of 128 tokens" in text(evaluation_parts([run])) and "mmlu_law (7)" in text(
        evaluation_parts([run])
    )


def test_a_report_is_drawn_again_from_its_runs(tmp_path: Path) -> None:
    run = folder(tmp_path / "run", choice=task([0, 1]))
    out = tmp_path / "out"
    out.mkdir()
    (out / "evaluate.json").write_text(json.dumps({"runs": [str(run), str(tmp_path / "gone")]}))
    assert write_evaluation_report(out) == out / "report.html"
    assert "1 of 2 runs have no scores" in (out / "report.md").read_text()
    (run / "evaluation.json").unlink()
    with pytest.raises(InputError, match="none of the folders in"):
        write_evaluation_report(out)
    with pytest.raises(InputError, match=r"run is no evaluation: it has no evaluate\.json"):
        write_evaluation_report(run)


def test_damage_is_one_sentence(tmp_path: Path) -> None:
    run = folder(tmp_path / "run")
    (run / "evaluation.json").write_text("{")
    with pytest.raises(InputError, match=r"evaluation\.json cannot be read .*; remove it and evaluate the run again"):
        evaluation_parts([run])
