"""Studies in real processes: run, killed, stopped, diverged, refused."""

import json
import random
import signal
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from attention_residuals import InputError
from attention_residuals.experiments.studies.engine import Crew, Workers, open_study, run_study
from attention_residuals.experiments.studies.state import run_state
from tests.experiments.killed_studies import (
    TinyStudy,
    kill_and_go_on,
    lines_written,
    orphans_let_go,
    results,
    start,
    write_text,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    folder = tmp_path_factory.mktemp("study")
    text, log = write_text(folder), StringIO()
    assert run_study(TinyStudy(str(text)), folder / "whole", Workers(2), Console(file=log, width=300))
    return folder / "whole", text, log.getvalue()


@pytest.mark.slow
def test_a_run_that_depends_on_others_comes_after_them(whole: tuple[Path, Path, str]) -> None:
    folder, _, _ = whole
    finals = {name: run_state(folder / "runs" / name).final for name in ("rate-0.003", "rate-0.01")}
    losses = {name: final["validation_loss"] for name, final in finals.items() if final}
    better = min(losses, key=lambda name: losses[name])
    assert len(losses) == 2
    plan = json.loads((folder / "plan" / "again.json").read_text())
    assert f"rate-{plan['run']['labels']['rate']:g}" == better
    assert run_state(folder / "runs" / "again").final


@pytest.mark.slow
def test_a_run_that_diverges_is_an_end_too(whole: tuple[Path, Path, str]) -> None:
    folder, _, log = whole
    state = run_state(folder / "runs" / "rate-1e+30")
    assert state.ended and state.final is None and state.stopped is not None
    assert "rate-1e+30" in state.stopped and ("nan" in state.stopped or "inf" in state.stopped)
    assert "rate-1e+30: stopped: " in log


@pytest.mark.slow
def test_progress_tells_of_all_runs(whole: tuple[Path, Path, str]) -> None:
    _, _, log = whole
    assert "again: validation loss" in log and "(4 of 4 runs, all done)" in log
    assert "of 4 runs" in log.split("again:")[0], "the run to come is counted before it is planned"


@pytest.mark.slow
def test_a_finished_study_is_over_at_once(whole: tuple[Path, Path, str]) -> None:
    folder, text, _ = whole
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}
    assert run_study(TinyStudy(str(text)), folder, Workers(2), Console(quiet=True))
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")} == before


@pytest.mark.slow
def test_a_study_killed_twice_ends_as_the_unbroken_one(whole: tuple[Path, Path, str], tmp_path: Path) -> None:
    folder, text, _ = whole
    killed = kill_and_go_on(tmp_path / "killed", text, 2, random.Random(0))
    assert len(killed) == 2
    assert results(tmp_path / "killed") == results(folder)


@pytest.mark.slow
def test_workers_stop_when_their_study_is_killed(whole: tuple[Path, Path, str], tmp_path: Path) -> None:
    _, text, _ = whole
    study = tmp_path / "study"
    process = start(study, text)
    while process.poll() is None and not lines_written(study):
        pass
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert orphans_let_go(study)
    states = {path.name: run_state(path) for path in (study / "runs").iterdir()}
    assert any(not state.ended for state in states.values()), "the kill came before the end"


@pytest.mark.slow
def test_a_run_that_fails_stops_the_study_in_one_sentence(tmp_path: Path) -> None:
    study = TinyStudy(str(tmp_path / "gone.txt"))
    with pytest.raises(InputError, match=r"run rate-\S+ failed: .*gone.txt does not exist.*; see .*log, mend this"):
        run_study(study, tmp_path / "study", Workers(1), Console(quiet=True))


def test_a_folder_that_is_no_study_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="exists and is no study; choose another folder with --out"):
        open_study(TinyStudy("a.txt"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    with pytest.raises(InputError, match="exists and is no study"):
        open_study(TinyStudy("a.txt"), tmp_path / "notes.txt")


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    open_study(TinyStudy("a.txt"), tmp_path / "study")
    open_study(TinyStudy("a.txt"), tmp_path / "study")
    with pytest.raises(InputError, match=r"was started with steps = 150, not 9; ask as then to go on"):
        open_study(TinyStudy("a.txt", steps=9), tmp_path / "study")


def test_a_study_killed_while_its_folder_was_made_can_begin_again(tmp_path: Path) -> None:
    study = tmp_path / "study"
    study.mkdir()
    (study / ".study.json.tmp").write_text("{")
    open_study(TinyStudy("a.txt"), study)
    assert (study / "study.json").exists()


def test_a_worker_that_was_killed_is_named_with_its_signal(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a.log").write_text("training\n")
    with pytest.raises(InputError, match="run a failed: its process ended with -9"):
        Crew(tmp_path, Workers(1))._require_success("a", -9)


@pytest.mark.parametrize("changes", [{"processes": 0}, {"threads": 0}])
def test_workers_are_at_least_one(changes: dict[str, int]) -> None:
    with pytest.raises(InputError, match="must be a whole number of at least 1"):
        Workers(**changes)
