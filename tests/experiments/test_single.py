"""One run from the command line: to its end, interrupted, resumed, refused."""

import json
import os
import signal
import subprocess
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from attention_residuals import InputError
from attention_residuals.configs import override
from attention_residuals.experiments.single import resume, train
from attention_residuals.recipes import find_recipe
from tests.experiments.killed_runs import COMMAND, main

SMALL = ["steps=6", "checkpoint_every_steps=3", "evaluation_tokens=256", "final_evaluation_tokens=512"]


def console() -> Console:
    return Console(file=StringIO(), width=200)


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    config = override(find_recipe("tiny"), SMALL)
    final = train(config, tmp_path / "run", console())
    assert final is not None and final["validation_bits_per_byte"] > final["validation_loss"]
    return tmp_path / "run"


def test_a_run_leaves_its_files(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert {"config.json", "metrics.jsonl", "validation.json", "probe.json", "checkpoints"} <= names
    assert json.loads((finished / "config.json").read_text())["data"]["source"]


def test_a_finished_run_is_not_resumed(finished: Path) -> None:
    with pytest.raises(InputError, match="is finished: all 6 steps are done"):
        resume(finished, console())


@pytest.mark.slow
def test_two_processes_on_one_run_and_ctrl_c(tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = [*COMMAND, "tiny", "steps=100000", "evaluate_every_steps=100000", "--out", str(run)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        while process.poll() is None and not (run / "metrics.jsonl").exists():
            os.sched_yield()
        second = subprocess.run([*COMMAND, "--resume", str(run)], capture_output=True, text=True)
        assert second.returncode == 2
        assert f"is in use by process {process.pid}" in second.stderr
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate()
    assert process.returncode == 0, output
    assert f"Go on with: attnres train --resume {run}" in output
    steps = (run / "metrics.jsonl").read_text().count("\n")
    assert (run / "checkpoints" / f"step-{steps:08d}").is_dir()


@pytest.mark.slow
def test_a_run_that_is_killed_twice_ends_as_the_uninterrupted_one(tmp_path: Path) -> None:
    found = main(tmp_path, kills=2)
    assert found["same"], found
    assert len(found["killed_at"]) == 2


def test_recipes_are_listed() -> None:
    done = subprocess.run([*COMMAND, "--list"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "tiny" in done.stdout and "4 layers" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tinny"], "no recipe 'tinny'; did you mean tiny"),
        (["tiny", "stpes=3"], "stpes is unknown: there is no field 'stpes'; did you mean steps"),
        (["tiny", "steps=many"], "steps is 'many', which is no int; give a whole number"),
        (["tiny", "device=toaster"], "device toaster cannot be used here; choose cpu"),
        ([], "name a recipe, or --resume RUN"),
        (["--resume", "nowhere"], "nowhere is no run folder"),
        (["tiny", "--resume", "nowhere"], "--resume goes on with a run as it was"),
    ],
)
def test_wrong_wishes_are_one_sentence(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from attention_residuals import cli

    assert cli.main(["train", *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
