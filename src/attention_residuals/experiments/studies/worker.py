"""The process of one run of a study: train it or go on with it, then find out what the study asks of its model."""

import json
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

from rich.console import Console

from attention_residuals.allocator import keep_freed_memory
from attention_residuals.configs import from_plain
from attention_residuals.errors import InputError
from attention_residuals.experiments.single import resume, train
from attention_residuals.experiments.studies.analyses import analyse
from attention_residuals.experiments.studies.plan import PlannedRun
from attention_residuals.experiments.studies.state import PLAN, RUNS, STOPPED
from attention_residuals.train import RunFolder, TrainingStoppedError
from attention_residuals.train.locks import InUseError

INTERRUPTED = 130
SECONDS_TO_LET_GO = 60


def main(study: Path, name: str) -> int:
    """Exit status: 0 when the run has ended, 130 when it was stopped and can go on, 2 for what a person must mend."""
    _stop_with_parent()
    keep_freed_memory()
    warnings.simplefilter("ignore")  # the study tells of its arms once, at its start
    planned = from_plain(PlannedRun, json.loads((study / PLAN / f"{name}.json").read_text())["run"])
    path, console = study / RUNS / name, Console()
    try:
        return 0 if work(planned, path, console) else INTERRUPTED
    except TrainingStoppedError as error:
        RunFolder(path).write_json(STOPPED, {"reason": str(error)})
        return 0
    except InputError as error:
        print(f"attnres: {error}", file=sys.stderr)
        return 2


def work(planned: PlannedRun, path: Path, console: Console) -> bool:
    """Bring one run to its end from wherever it is; False if it was interrupted."""
    if path.exists() and not (path / "config.json").exists():
        shutil.rmtree(path)  # killed between the making of the folder and the writing of its config
    if not (path / "validation.json").exists():
        final = _resume_once_free(path, console) if path.exists() else train(planned.config, path, console)
        if final is None:
            return False
    for name in planned.analyses:
        if not (path / f"{name}.json").exists():
            RunFolder(path).write_json(f"{name}.json", analyse(name, path))
    return True


def _resume_once_free(path: Path, console: Console) -> dict[str, Any] | None:
    """Go on with a run as soon as a process that a killed study left behind has let go of it."""
    for _ in range(SECONDS_TO_LET_GO):
        try:
            return resume(path, console)
        except InUseError:
            time.sleep(1)
    return resume(path, console)


def _stop_with_parent() -> None:
    """Ask this process to stop as soon as standard input ends: the study's process holds its other end."""

    def wait() -> None:
        while sys.stdin.buffer.read(1):
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
