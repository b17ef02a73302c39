"""The command line: exit status and one sentence for what is wrong."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from attention_residuals import cli
from attention_residuals.commands import compare
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

    monkeypatch.setattr(compare, "compare", stop)
    found, error = run(["compare"], capsys)
    assert found == status and error.startswith("attnres: ") and error.count("\n") == 1


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_tells_its_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main([name, "--help"])
    assert f"usage: attnres {name}" in capsys.readouterr().out


def test_a_file_of_options_is_a_command() -> None:
    files = Path(compare.__file__).parent.glob("*.py")
    assert {file.stem for file in files if "\ndef add_options(" in file.read_text()} == set(cli.COMMANDS)


def test_a_command_that_is_not_there_is_told_which_are(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["trane"])
    assert "invalid choice: 'trane'" in (told := capsys.readouterr().err) and "retrofit" in told


def test_to_list_commands_imports_none_of_them() -> None:
    script = "import sys; from attention_residuals import cli; cli._parser([]); print(*sys.modules)"
    there = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()
    assert not [
        name for name in there if re.match(r"attention_residuals\.(commands|train|experiments)|torch._dynamo", name)
    ]


def test_faults_of_ours_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr(compare, "compare", fail)
    with pytest.raises(ValueError, match="a bug"):
        cli.main(["compare"])


@pytest.mark.parametrize(
    ("processes", "arguments", "message"),
    [
        (1, ["parallel.stages=2"], "asks for 2 processes .* and 1 were started"),
        (2, [], "asks for 1 processes .* and 2 were started"),
        (2, ["parallel.shards=2", "probe_every_steps=5"], "probe_every_steps is 5"),
        (3, ["parallel.tensor=3", "text.sequence_tokens=33"], "heads is 1, which 3"),
        (16, ["parallel.stages=16"], "at most 8 are possible"),
        (2, ["parallel.shards=2", "parallel.experts=2", "probe_every_steps=0"], "has no experts to spread"),
    ],
)
@pytest.mark.parametrize("process", [0, 1])
def test_a_layout_that_does_not_fit_is_refused_before_anybody_waits(
    processes: int,
    arguments: list[str],
    message: str,
    process: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in (("WORLD_SIZE", processes), ("RANK", process), ("LOCAL_RANK", process)):
        monkeypatch.setenv(name, str(value))
    status, error = run(["train", "tiny", *arguments, "--out", str(tmp_path / "run")], capsys)
    assert status == 2 and not (tmp_path / "run").exists()
    assert re.search(message, error) and error.count("\n") == 1 if process == 0 else error == ""


def test_a_run_over_processes_needs_a_folder(capsys: pytest.CaptureFixture[str]) -> None:
    status, error = run(["train", "tiny", "parallel.stages=2"], capsys)
    assert status == 2 and "name it with --out" in error


def test_a_run_that_is_there_goes_on_or_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    small = ["train", "tiny", "text.sequence_tokens=16", "final_evaluation_tokens=64", "--out", str(out), "--continue"]
    out.mkdir()  # as left by a process that was killed before it wrote its config
    assert run([*small, "steps=2"], capsys) == (0, "")
    assert (out / "validation.json").exists()
    assert run([*small, "steps=2"], capsys) == (0, "")
    status, error = run([*small, "steps=3"], capsys)
    assert status == 2 and "was started with steps = 2, not 3" in error


def test_a_folder_of_other_things_is_never_taken_for_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    status, error = run(["train", "tiny", "--continue", "--out", str(tmp_path)], capsys)
    assert status == 2 and "exists and is no run" in error
    assert (tmp_path / "letter.txt").read_text() == "mine"


def test_a_device_that_is_not_there_is_refused_when_a_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    status, error = run(["train", "tiny", "device=cuda:99", "--continue", "--out", str(out)], capsys)
    assert status == 2 and "device cuda:99 cannot be used here" in error and not out.exists()


def test_only_the_layout_may_change_when_a_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, error = run(["train", "--resume", str(tmp_path), "steps=3"], capsys)
    assert status == 2 and "no path=value but parallel.*" in error
