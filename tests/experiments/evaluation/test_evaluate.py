"""From folders to `evaluation.json` and a report, or one sentence that says why not."""

import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from datasets import config as settings
from lm_eval import evaluator

from attention_residuals import InputError, cli
from attention_residuals.configs import to_plain
from attention_residuals.experiments.evaluation import evaluate as module
from attention_residuals.experiments.evaluation.evaluate import EvaluationRequest, evaluate, evaluation
from attention_residuals.experiments.evaluation.items import CONTINUATION, RECALL, WORD
from attention_residuals.experiments.studies.analyses import ANALYSES, analyse
from attention_residuals.hf.export import export
from attention_residuals.train import load_trained
from tests.experiments.evaluation.support import lines_twice, quiet, text_twice, trained_run
from tests.experiments.evaluation.test_harness import own_task

LOCAL = {CONTINUATION, RECALL, WORD}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few questions, and no inquiry into the machine, which takes lm-eval a second or two."""
    monkeypatch.setattr(module, "ITEMS", 12)
    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("text") / "lines.txt"
    file.write_bytes(lines_twice(400, seed=3))
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Path:
    return trained_run(tmp_path_factory.mktemp("runs") / "run", text)


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy, for scores to be written into."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def scores(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "evaluation.json").read_text())


def test_a_run_from_the_command_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["evaluate", str(run), "--limit", "6", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert f"Report: {out / 'report.html'}" in printed and f"{RECALL}, log-probability -" in printed
    found = scores(run)
    assert set(found["tasks"]) == LOCAL and found["step"] == 4 and found["context_tokens"] == 128
    assert found["text"]["fingerprint"] and all(record["items"] == 6 for record in found["tasks"].values())
    assert "heldout_recall, log-probability" in (out / "report.md").read_text()
    assert (out / "report.html").read_text().startswith("<!doctype html>")


def test_an_exported_model_scores_as_its_run(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "HF_DATASETS_CACHE", tmp_path / "cache")
    export(run, tmp_path / "exported")
    tasks = (RECALL, str(own_task(tmp_path)))
    request = EvaluationRequest((run, tmp_path / "exported"), tasks, limit=5, text_of=run)
    evaluate(request, tmp_path / "out", quiet())
    mine, theirs = scores(run), scores(tmp_path / "exported")
    assert set(mine["tasks"]) == {RECALL, "own_choice"} and mine["tasks"] == theirs["tasks"]
    assert mine["step"] == 4 and theirs["step"] is None
    report = (tmp_path / "out" / "report.md").read_text()
    assert "Of 2 tasks, exported is better than run on 0, worse on 0, and cannot be told apart on 2." in report


def test_scores_of_the_same_step_are_kept(run: Path, tmp_path: Path) -> None:
    for number, (task, step) in enumerate(((RECALL, 4), (WORD, 4), (WORD, 2))):
        request = EvaluationRequest((run,), (task,), limit=3, step=step)
        evaluate(request, tmp_path / str(number), quiet())
        expected = [{RECALL}, {RECALL, WORD}, {WORD}][number]
        assert set(scores(run)["tasks"]) == expected and scores(run)["step"] == step


def test_a_study_is_all_its_finished_runs(run: Path, tmp_path: Path) -> None:
    study = tmp_path / "study"
    for number, (name, arm, seed) in enumerate((("a", "standard", 0), ("b", "block4", 0), ("c", "block4", 1))):
        planned = {"name": name, "labels": {"arm": arm, "seed": seed}}
        (study / "plan").mkdir(parents=True, exist_ok=True)
        (study / "plan" / f"{name}.json").write_text(json.dumps({"number": number, "run": planned}))
        if name != "c":
            shutil.copytree(run, study / "runs" / name)
    (study / "study.json").write_text("{}")
    console = quiet()
    evaluate(EvaluationRequest((study,), limit=3), tmp_path / "out", console)
    assert "1 of its runs have not finished and are left out" in console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert set(scores(study / "runs" / "a")["tasks"]) == LOCAL
    report = (tmp_path / "out" / "report.md").read_text()
    assert "| task and measure | questions | chance | standard | block4 |" in report
    assert "| difference to standard | block4 |" in report
    assert "+0.0 ± 0.0 points" in report  # both are the same model


def test_a_study_may_ask_for_it_as_an_analysis(run: Path) -> None:
    assert ANALYSES["evaluation"] is evaluation
    found = analyse("evaluation", run)
    assert json.loads(json.dumps(to_plain(found))) == found
    assert set(found["tasks"]) == LOCAL and found["step"] == 4


def test_a_text_without_questions_is_said_to_be_so(run: Path) -> None:
    data = type(text_twice()).from_bytes(b"0123456789" * 40, b"9876543210" * 40, 128)
    with pytest.raises(InputError, match="the held-out text has no question for heldout_continuation"):
        evaluation(load_trained(run), data)


def test_a_text_that_has_changed_is_not_held_out(run: Path, tmp_path: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    config["data"]["fingerprint"] = "another"
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=r"run was trained on another text \(fingerprint another, here"):
        evaluate(EvaluationRequest((run,)), tmp_path / "out", quiet())
    assert not (tmp_path / "out").exists()


def no_checkpoint(folder: Path, run: Path) -> list[str]:
    shutil.rmtree(run / "checkpoints")
    return [str(run)]


def damaged_export(folder: Path, run: Path) -> list[str]:
    export(run, folder / "exported")
    content = bytearray((folder / "exported" / "model.safetensors").read_bytes())
    content[-1] ^= 64
    (folder / "exported" / "model.safetensors").write_bytes(content)
    return [str(folder / "exported"), "--text-of", str(run)]


def export_without_tokenizer(folder: Path, run: Path) -> list[str]:
    export(run, folder / "exported")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "exported" / name).unlink()
    return [str(folder / "exported"), "--text-of", str(run)]


def export_without_text(folder: Path, run: Path) -> list[str]:
    export(run, folder / "exported")
    return [str(folder / "exported")]


def step_of_export(folder: Path, run: Path) -> list[str]:
    return [*export_without_text(folder, run), "--checkpoint", "4"]


def damaged_scores(folder: Path, run: Path) -> list[str]:
    (run / "evaluation.json").write_text("{")
    return [str(run), "--limit", "1"]


def unfinished_study(folder: Path, run: Path) -> list[str]:
    (folder / "study" / "plan").mkdir(parents=True)
    (folder / "study" / "study.json").write_text("{}")
    return [str(folder / "study")]


@pytest.mark.parametrize(
    ("arrange", "message"),
    [
        (no_checkpoint, "has no checkpoint, so its weights are gone; train with checkpoint_every_steps=N"),
        (damaged_export, "exported is damaged: model.safetensors has the right size and another"),
        (export_without_tokenizer, "exported has no tokenizer that can be read"),
        (export_without_text, "is an exported model and does not say which text was held out; name its run"),
        (step_of_export, "exported is an exported model, of one step; leave out --checkpoint"),
        (damaged_scores, "evaluation.json cannot be read"),
        (unfinished_study, "study has no finished run yet"),
        (lambda folder, run: [str(run), "--checkpoint", "3"], "has no checkpoint of step 3; there are 2, 4"),
        (lambda folder, run: [str(run), str(run)], "is named twice; name each run once"),
        (lambda folder, run: [str(run), "--limit", "0"], "limit is 0; it must be a whole number of at least 1"),
        (lambda folder, run: [str(run), "--batch", "0"], "batch_sequences is 0; it must be"),
        (lambda folder, run: [str(run), "--device", "toaster"], "device toaster cannot be used here"),
        (lambda folder, run: [str(folder)], "is no run folder"),
        (lambda folder, run: [str(run), "--out", str(run)], "exists; choose another folder with --out"),
    ],
)
def test_wrong_input_is_one_sentence(
    arrange: Any, message: str, run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    arguments = arrange(tmp_path, run)
    capfd.readouterr()  # transformers reports its progress
    out = [] if "--out" in arguments else ["--out", str(tmp_path / "out")]
    assert cli.main(["evaluate", *arguments, *out]) == 2
    error = capfd.readouterr().err.splitlines()
    assert error[-1].startswith("attnres: ") and message in error[-1]
    assert not [line for line in error[:-1] if "Traceback" in line]


def test_without_lm_eval_the_command_names_what_to_install(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert cli.main(["evaluate", str(run), "--out", str(tmp_path / "out")]) == 2
    assert "pip install 'attention-residuals[eval]'" in capsys.readouterr().err
