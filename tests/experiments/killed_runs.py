"""Kills a training run with -9 at random moments, resumes it each time, and compares it with the uninterrupted run.

`python -m tests.experiments.killed_runs FOLDER KILLS` prints what happened as JSON.
"""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

CHANGES = [
    "steps=60",
    "checkpoint_every_steps=2",
    "evaluate_every_steps=20",
    "evaluation_tokens=256",
    "probe_every_steps=5",
]
COMMAND = [sys.executable, "-m", "attention_residuals.cli", "train"]


def start(arguments: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def finish(arguments: list[str]) -> None:
    process = start(arguments)
    _, error = process.communicate()
    assert process.returncode == 0, error.decode()


def steps_done(run: Path) -> int:
    metrics = run / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def wait_for_training(process: "subprocess.Popen[bytes]", run: Path, before: int) -> bool:
    """Until the process has trained a step of its own; False if it ended first."""
    while process.poll() is None:
        if steps_done(run) != before:
            return True
        time.sleep(0.005)
    return False


def kill_and_resume(run: Path, kills: int, chance: random.Random) -> tuple[list[int], int]:
    """Steps that were on record at each kill, and how many kills cut a save short."""
    killed, cut_saves = [], 0
    arguments = ["tiny", *CHANGES, "--out", str(run)]
    while len(killed) < kills:
        process = start(arguments)
        if wait_for_training(process, run, steps_done(run)):
            time.sleep(chance.uniform(0, 0.4))
        if process.poll() is not None:
            _, error = process.communicate()
            assert process.returncode == 0, error.decode()
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed.append(steps_done(run))
        cut_saves += any((run / "checkpoints").glob(".tmp-*"))
        arguments = ["--resume", str(run)]
    if not (run / "validation.json").exists():
        finish(["--resume", str(run)])
    return killed, cut_saves


def records(run: Path, name: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (run / name).read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


def same(one: Path, other: Path) -> bool:
    """Metrics, probes, final validation and final weights, to the last bit."""
    files = all(records(one, name) == records(other, name) for name in ("metrics.jsonl", "probes.jsonl"))
    windows = (one / "validation.json").read_bytes() == (other / "validation.json").read_bytes()
    mine, theirs = (load_file(run / "checkpoints" / "step-00000060" / "model.safetensors") for run in (one, other))
    weights = mine.keys() == theirs.keys() and all(mine[name].tobytes() == theirs[name].tobytes() for name in mine)
    return files and windows and weights


def main(folder: Path, kills: int) -> dict[str, Any]:
    finish(["tiny", *CHANGES, "--out", str(folder / "whole")])
    killed, cut_saves = kill_and_resume(folder / "killed", kills, random.Random(0))
    return {"killed_at": killed, "cut_saves": cut_saves, "same": same(folder / "whole", folder / "killed")}


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
