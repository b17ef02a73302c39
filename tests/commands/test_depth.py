"""The commands that look along the depth: what they pass on, and one sentence for what is wrong."""

import argparse
from pathlib import Path

import pytest

from attention_residuals import cli
from attention_residuals.commands import arm_studies, dynamics, studies
from attention_residuals.experiments.arm_studies import DepthStudy, DynamicsStudy
from attention_residuals.experiments.studies.engine import Workers
from attention_residuals.experiments.studies.plan import Study
from tests.experiments.studies_in_process import write_corpus


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dynamics", "--models", "standard", "wide"], "'wide' is no model"),
        (["dynamics", "--models", "standard", "--tokens", "10"], "10 tokens are less than one step"),
        (["dynamics", "--models", "standard", "--processes", "0"], "processes is 0"),
        (["depth", "--models", "full", "--device", "toaster"], "device toaster cannot be used here"),
        (["depth", "--models", "full", "--lr", "-1"], "learning_rate is -1.0"),
        (["depth", "--runs", "nowhere"], "nowhere is no run folder and no study"),
        (["control", "--steps", "0"], "steps is 0"),
        (["control", "--data", "missing.txt"], "missing.txt does not exist"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*arguments, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("command", "kind"), [("dynamics", DynamicsStudy), ("depth", DepthStudy)])
def test_options_become_the_study(command: str, kind: type, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[Study, Path, Workers]] = []

    def run(study: Study, folder: Path, workers: Workers, console: object) -> bool:
        asked.append((study, folder, workers))
        return False

    monkeypatch.setattr(studies, "run_study", run)
    data = str(write_corpus(tmp_path))
    options = ["--models", "standard", "full", "--depth", "2", "--seeds", "5", "6", "--tokens", "9000", "--data", data]
    assert cli.main([command, *options, "--processes", "3", "--out", str(tmp_path / "out")]) == 130
    ((study, folder, workers),) = asked
    assert study == kind(("standard", "full"), layers=2, seeds=(5, 6), tokens=9000, data=(data,))
    assert folder == tmp_path / "out" and workers == Workers(3, 1)


def test_a_rate_that_is_asked_for_is_that_of_all() -> None:
    parser = argparse.ArgumentParser()
    dynamics.add_options(parser)
    assert arm_studies.fields_of(parser.parse_args([])).keys().isdisjoint({"learning_rates"})
    asked = DynamicsStudy(**arm_studies.fields_of(parser.parse_args(["--lr", "0.002"])))
    assert {run.config.optimizer.learning_rate for run in asked.runs({})} == {0.002}


def test_the_control_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [
        "--depth",
        "1",
        "--block",
        "2",
        "--steps",
        "2",
        "--sequence",
        "16",
        "--data",
        str(write_corpus(tmp_path)),
    ]
    assert cli.main(["control", *options, "--out", str(tmp_path / "out")]) == 0
    assert "block2, read by read: 2 steps, losses at most" in capsys.readouterr().out
