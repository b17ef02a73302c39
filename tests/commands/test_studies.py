"""The commands of studies: end to end on tiny sizes, and one sentence for what is wrong."""

import json
import re
from pathlib import Path

import pytest

from attention_residuals import cli
from attention_residuals.commands import studies
from tests.experiments.killed_studies import write_text
from tests.experiments.studies_in_process import run_study_here

TINY = ["--tokens-per-parameter", "1", "--batch", "2", "--sequence", "16", "--processes", "2"]


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = cli.main(arguments)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.slow
def test_a_tiny_ladder_from_the_command_to_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(studies, "run_study", run_study_here)
    out = tmp_path / "ladder"
    command = ["ladder", "--sizes", "1", "2", "3", "--models", "standard", "full", "--seeds", "1", *TINY]
    command += ["--data", str(write_text(tmp_path)), "--out", str(out)]
    status, printed, error = run(command, capsys)
    assert status == 0, error
    assert "Size 3: 3 layers of 12 features" in printed and f"Report: {out / 'report.html'}" in printed
    report = (out / "report.md").read_text()
    assert "one seed a size gives no interval" in report and "Learning rates tried on the baseline" in report
    for name in ("L1-standard-seed1", "L3-full-seed1"):
        final = json.loads((out / "runs" / name / "metrics.jsonl").read_text().splitlines()[-1])
        assert f"{final['validation_loss']:.4f}" in report
    status, printed, _ = run(["report", str(out)], capsys)
    assert status == 0 and (out / "report.md").read_text() == report
    status, _, error = run([*command, "--seeds", "1", "2"], capsys)
    assert status == 2 and "was started with seeds = [1], not [1, 2]" in error


def test_reports_of_other_folders_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, error = run(["report", str(tmp_path)], capsys)
    assert status == 2 and "holds no results: it has no compare.json, no evaluate.json and no study.json" in error
    (tmp_path / "study.json").write_text(json.dumps({"kind": "palmistry"}))
    status, _, error = run(["report", str(tmp_path)], capsys)
    assert status == 2 and "is a study of kind 'palmistry'; this version reports ladder" in error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ladder", "--arms", "standard", "wide"], "'wide' is no model"),
        (["ladder", "--sizes", "3", "2"], "name them in rising order"),
        (["ladder", "--scale", "0"], "scale is 0.0; it must be a positive number"),
        (["ladder", "--seeds", "0"], "seed 0 tunes the baseline"),
        (["ladder", "--data", "missing.txt"], "missing.txt does not exist"),
        (["ladder", "--processes", "0"], "processes is 0"),
        (["ladder", "--device", "toaster"], "device toaster cannot be used here"),
        (["ablate", "--arms", "standard", "wide"], "'wide' is no model"),
        (["ablate", "--arms", "standard", "full", "--lr", "-1"], "learning rate is -1"),
        (["sweep", "--model", "wide"], "'wide' is no model"),
        (["sweep", "--ratios", "8", "4"], "name them in rising order"),
    ],
)
def test_wrong_wishes_are_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, error = run([*arguments, "--out", str(tmp_path / "out")], capsys)
    assert status == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_every_study_goes_on_in_a_folder_of_its_own_name(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("ladder", "ablate", "sweep"):
        with pytest.raises(SystemExit):
            cli.main([name, "--help"])
        assert re.search(rf"\(default:\s+runs/{name}\)", capsys.readouterr().out)
