"""The command line: exit status and one sentence for what is wrong."""

from pathlib import Path

import pytest

from attention_residuals import cli
from attention_residuals.train import TrainingStoppedError


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = cli.main(arguments)
    return status, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--models", "standard", "wide"], "'wide' is no model"),
        (["--models", "block0"], "Sublayers(count=0) is no block size"),
        (["--lr", "-1"], "learning_rate is -1.0"),
        (["--depth-lr", "0"], "depth_learning_rate is 0.0"),
        (["--data", "missing.txt"], "missing.txt does not exist"),
        (["--device", "cuda:99"], "device cuda:99 cannot be used here"),
        (["--device", "toaster"], "device toaster cannot be used here"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, error = run(["compare", "--out", str(tmp_path / "out"), *arguments], capsys)
    assert status == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_folder_that_exists_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, error = run(["compare", "--out", str(tmp_path)], capsys)
    assert status == 2 and f"{tmp_path} exists" in error


def test_a_report_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, error = run(["report", str(tmp_path)], capsys)
    assert status == 2 and "has no compare.json" in error


@pytest.mark.parametrize(
    ("raised", "status"), [(TrainingStoppedError("loss is nan at step 3"), 1), (KeyboardInterrupt(), 130)]
)
def test_stops_are_told_without_a_traceback(
    raised: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise raised

    monkeypatch.setattr(cli, "compare", stop)
    found, error = run(["compare"], capsys)
    assert found == status and error.startswith("attnres: ") and error.count("\n") == 1


def test_faults_of_ours_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(cli, "compare", fail)
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["compare"])
