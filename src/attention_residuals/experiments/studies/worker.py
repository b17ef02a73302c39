"""The process of one run of a study: train it or go on with it, then find out what the study asks of its model."""

import json
import os
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console

from attention_residuals.allocator import keep_freed_memory
from attention_residuals.configs import from_plain
from attention_residuals.errors import InputError
from attention_residuals.experiments.single import resume, train
from attention_residuals.experiments.studies.analyses import analyse
from attention_residuals.experiments.studies.plan import PlannedRun
from attention_residuals.experiments.studies.state import LOCKS, PLAN, RUNS, STOPPED
from attention_residuals.train import RunFolder, TrainingStoppedError
from attention_residuals.train.locks import InUseError, folder_lock

INTERRUPTED = 130
SECONDS_TO_LET_GO = 600


def main(study: Path, name: str) -> int:
    """Exit status: 0 when the run has ended, 130 when it was stopped and can go on, 2 for what a person must mend."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the study with it ignored
    warnings.simplefilter("ignore")  # the study tells of its arms once, at its start
    try:
        _stop_with_parent()
        keep_freed_memory()
        planned = read_plan(study, name)
        with _alone(study / LOCKS / name):
            return 0 if work(planned, study / RUNS / name, Console()) else INTERRUPTED
    except KeyboardInterrupt:
        return INTERRUPTED
    except InputError as error:
        print(f"attnres: {error}", file=sys.stderr)
        return 2


def read_plan(study: Path, name: str) -> PlannedRun:
    """The run of this name, as the study's process wrote it down."""
    return from_plain(PlannedRun, json.loads((study / PLAN / f"{name}.json").read_text())["run"])


def work(planned: PlannedRun, path: Path, console: Console) -> bool:
    """Bring one run to its end from wherever it is; False if it was interrupted.

    A number that is no longer finite is an end too: `stopped.json` has the reason.
    """
    if path.exists() and not (path / "config.json").exists():
        shutil.rmtree(path)  # killed between the making of the folder and the writing of its config
    if not (path / "validation.json").exists():
        try:
            final = resume(path, console) if path.exists() else train(planned.config, path, console)
        except TrainingStoppedError as error:
            RunFolder(path).write_json(STOPPED, {"reason": str(error)})
            return True
        if final is None:
            return False
    for name in planned.analyses:
        if not (path / f"{name}.json").exists():
            RunFolder(path).write_json(f"{name}.json", analyse(name, path))
    return True


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold the folder `lock` while the body runs, once the process that a killed study left behind has let go of it."""
    lock.mkdir(exist_ok=True)
    with ExitStack() as stack:
        for _ in range(SECONDS_TO_LET_GO):
            try:
                stack.enter_context(folder_lock(lock))
                break
            except InUseError:
                time.sleep(1)
        else:
            stack.enter_context(folder_lock(lock))
        yield


def _stop_with_parent() -> None:
    """Ask this process to stop as soon as standard input ends: the study's process holds its other end."""

    def wait() -> None:
        while os.read(0, 1):  # not through sys.stdin, whose lock this thread would hold when the process ends
            pass
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
