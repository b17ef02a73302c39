"""Kills a study's process with -9 at random moments, gives the same command again, and compares the results.

`python -m tests.experiments.killed_studies run FOLDER TEXT` runs a tiny study, in which the learning rate of the last
run depends on how the first ones ended. `... killed FOLDER TEXT KILLS` kills it and prints what happened as JSON.
"""

import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

from rich.console import Console

from attention_residuals import DecoderConfig
from attention_residuals.experiments.studies.engine import Workers, run_study
from attention_residuals.experiments.studies.plan import PlannedRun, States, Study
from attention_residuals.train import AdamW, TextConfig, TrainConfig
from attention_residuals.train.locks import InUseError, folder_lock

STEPS = 150
DIVERGING = 1e30


@final
@dataclass(frozen=True)
class TinyStudy(Study):
    """Two runs of different rates, one that diverges, and one more at the better rate of the two."""

    kind: ClassVar[str] = "tiny"

    text: str
    steps: int = STEPS

    def runs(self, ended: States) -> list[PlannedRun]:
        first = [self._run(f"rate-{rate:g}", rate) for rate in (3e-3, 1e-2, DIVERGING)]
        losses = {name: state.final["validation_loss"] for name, state in ended.items() if state.final}
        if not all(run.name in ended for run in first):
            return first
        best = min(first, key=lambda run: losses.get(run.name, 99.0))
        return [*first, self._run("again", best.labels["rate"], seed=1)]

    def to_come(self, ended: States) -> list[PlannedRun]:
        return [] if len(self.runs(ended)) == 4 else [self._run("again", 1.0)]

    def describe(self) -> list[str]:
        return ["a tiny study"]

    def _run(self, name: str, rate: float, seed: int = 0) -> PlannedRun:
        config = TrainConfig(
            DecoderConfig.from_depth(1),
            steps=self.steps,
            name=name,
            text=TextConfig((self.text,), sequence_tokens=16),
            optimizer=AdamW(learning_rate=rate),
            seed=seed,
            batch_sequences=2,
            evaluate_every_steps=50,
            evaluation_tokens=64,
            final_evaluation_tokens=256,
            checkpoint_every_steps=10,
        )
        return PlannedRun(name, config, {"rate": rate})


def write_text(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text("".join(f"line {n} of a text that is long enough to learn from\n" for n in range(400)))
    return path


def start(folder: Path, text: Path) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tests.experiments.killed_studies", "run", str(folder), str(text)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def lines_written(folder: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in folder.glob("runs/*/metrics.jsonl"))


def kill_and_go_on(folder: Path, text: Path, kills: int, chance: random.Random) -> list[int]:
    """Lines of metrics that were there at each kill."""
    killed: list[int] = []
    while len(killed) < kills:
        process, before = start(folder, text), lines_written(folder)
        while process.poll() is None and lines_written(folder) == before:
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.5))
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.communicate()
        killed.append(lines_written(folder))
    process = start(folder, text)
    _, error = process.communicate()
    assert process.returncode == 0, error.decode()
    return killed


def orphans_let_go(folder: Path, seconds: float = 30) -> bool:
    """Whether every worker stops by itself: the lock on its run can be had."""
    until = time.monotonic() + seconds
    for lock in (folder / "locks").iterdir():
        while True:
            try:
                with folder_lock(lock):
                    break
            except InUseError:
                if time.monotonic() > until:
                    return False
                time.sleep(0.05)
    return True


def results(folder: Path) -> dict[str, Any]:
    """All that tables are made of, by run: metrics without seconds, windows of validation, probe, reasons to stop."""
    found: dict[str, Any] = {}
    for run in sorted((folder / "runs").iterdir()):
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        metrics = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
        files = {
            name: (run / name).read_text()
            for name in ("validation.json", "probe.json", "stopped.json")
            if (run / name).exists()
        }
        plan = json.loads((folder / "plan" / f"{run.name}.json").read_text())
        found[run.name] = [metrics, files, plan["run"]]
    return found


def main(arguments: list[str]) -> int:
    action, folder, text, *rest = arguments
    if action == "run":
        return 0 if run_study(TinyStudy(text), Path(folder), Workers(2), Console(quiet=True)) else 130
    killed = kill_and_go_on(Path(folder), Path(text), int(rest[0]), random.Random(0))
    print(json.dumps({"killed_at": killed}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
