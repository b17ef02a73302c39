"""Running a study: a process for each run, several side by side, one bar over all of them, and going on later."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from attention_residuals.configs import first_difference, to_plain
from attention_residuals.errors import InputError, require_positive
from attention_residuals.experiments.studies.plan import PlannedRun, Study
from attention_residuals.experiments.studies.progress import study_progress
from attention_residuals.experiments.studies.state import LOCKS, LOGS, PLAN, RUNS, STUDY, RunState, run_state
from attention_residuals.experiments.studies.worker import INTERRUPTED
from attention_residuals.train import RunFolder, run_lock
from attention_residuals.train.interrupt import stop_on_interrupt

SECONDS_BETWEEN_LOOKS = 0.5


@dataclass(frozen=True)
class Workers:
    """How many runs at once, and threads of torch for each. By default a process a core: small models gain least from
    a second thread.
    """

    processes: int = field(default_factory=lambda: os.cpu_count() or 1)
    threads: int = 1

    def __post_init__(self) -> None:
        require_positive(self, "processes", "threads")


def run_study(study: Study, folder: Path, workers: Workers, console: Console) -> bool:
    """Start the study in the new `folder`, or go on with it if it is there; whether every run has ended.

    Raises:
        InputError: `folder` is something else, or of a study that was asked with other settings; a run needs a hand.
    """
    open_study(study, folder)
    with run_lock(folder), stop_on_interrupt() as interrupt, study_progress(console) as progress:
        crew = Crew(folder, workers)
        try:
            while not interrupt.wanted:
                crew.let_go()  # before the plan is made, which may grow by what has just ended
                planned, to_come = _plan(study, folder)
                crew.fill(planned)
                progress.show(planned, crew.states(planned), crew.names, to_come)
                if not crew.names:
                    return True
                time.sleep(SECONDS_BETWEEN_LOOKS)
        finally:
            crew.dismiss()
    return False


def open_study(study: Study, folder: Path) -> None:
    """Make the folder of a study, or make sure that it is this one's.

    Raises:
        InputError: it is something else, or was asked with other settings.
    """
    asked = {"kind": study.kind, "study": to_plain(study)}
    if not folder.exists():
        RunFolder.create(folder)
    if not (folder / STUDY).exists():
        if not folder.is_dir() or {path.name for path in folder.iterdir()} - {f".{STUDY}.tmp"}:
            raise InputError(f"{folder} exists and is no study; choose another folder with --out")
        RunFolder(folder).write_json(STUDY, asked)
    _require_same(folder, asked)
    for name in (PLAN, RUNS, LOGS, LOCKS):
        (folder / name).mkdir(exist_ok=True)


def _require_same(folder: Path, asked: dict[str, Any]) -> None:
    found = json.loads((folder / STUDY).read_text())
    if difference := first_difference(found, asked):
        name, was, now = difference
        raise InputError(
            f"{folder} was started with {name.removeprefix('study.')} = {was!r}, not {now!r}; "
            "ask as then to go on with it, or choose another folder with --out"
        )


def _plan(study: Study, folder: Path) -> tuple[list[PlannedRun], list[PlannedRun]]:
    """The runs that are known by now, and stand-ins for others; new ones are written down before they start."""
    plans = {file.stem for file in (folder / PLAN).glob("*.json")}
    states = {name: run_state(folder / RUNS / name) for name in plans}
    ended = {name: state for name, state in states.items() if state.ended}
    planned = study.runs(ended)
    assert len({run.name for run in planned}) == len(planned), "two runs of one name"
    for number, run in enumerate(planned):
        if run.name not in plans:
            plain = {"number": number, "run": to_plain(run), "cost": run.cost, "tokens": run.tokens}
            RunFolder(folder / PLAN).write_json(f"{run.name}.json", plain)
    return planned, study.to_come(ended)


class Crew:
    """The processes at work on one study."""

    def __init__(self, folder: Path, workers: Workers):
        self._folder = folder
        self._workers = workers
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def names(self) -> list[str]:
        """Runs being worked on."""
        return list(self._running)

    def states(self, planned: list[PlannedRun]) -> dict[str, RunState]:
        """How far each planned run is."""
        return {run.name: run_state(self._folder / RUNS / run.name, run.analyses) for run in planned}

    def let_go(self) -> None:
        """Forget processes that are done.

        Raises:
            InputError: one failed in a way that its run cannot mend.
        """
        for name, process in list(self._running.items()):
            if process.poll() is not None:
                del self._running[name]
                _close_input(process)
                self._require_success(name, process.returncode)

    def fill(self, planned: list[PlannedRun]) -> None:
        """Start as many runs that have not ended as there is room for."""
        states = self.states(planned)
        waiting = [run.name for run in planned if not states[run.name].ended and run.name not in self._running]
        for name in waiting[: self._workers.processes - len(self._running)]:
            self._running[name] = self._start(name)

    def dismiss(self) -> None:
        """Have every process save and stop, and wait for it."""
        for process in self._running.values():
            _close_input(process)
        for process in self._running.values():
            process.wait()

    def _start(self, name: str) -> "subprocess.Popen[bytes]":
        threads = str(self._workers.threads)
        environment = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
        command = [sys.executable, "-m", "attention_residuals.experiments.studies.worker", str(self._folder), name]
        with (self._folder / LOGS / f"{name}.log").open("ab") as log:
            # A session of its own: Ctrl-C reaches the study alone, which asks its processes in turn.
            return subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def _require_success(self, name: str, status: int) -> None:
        if status in (0, INTERRUPTED):
            return
        log = self._folder / LOGS / f"{name}.log"
        words = log.read_text(errors="replace").strip().splitlines()
        told = words[-1].removeprefix("attnres: ") if words and status > 0 else f"its process ended with {status}"
        raise InputError(f"run {name} failed: {told}; see {log}, mend this, and give the same command to go on")


def _close_input(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.close()
