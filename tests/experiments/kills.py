"""A reproduction that is killed at random moments; a command for people.

`python -m tests.experiments.kills FOLDER` runs `attnres reproduce` in small, once undisturbed and once killed twice by
SIGKILL, and compares every table of every report. It takes minutes. With `--against WHOLE --seconds S` it is the
default reproduction, held against the undisturbed one in WHOLE, with kills within about S seconds from its start.

Every other kill takes the command alone, whose runs then save and stop; the rest take all of its processes at once, as
a power cut does. What depends on the speed of the machine is left out: tables and columns of times, and the figures.
"""

import argparse
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

COMMON = "{0}.common.tokens_per_parameter=0.4 {0}.common.text.sequence_tokens=32 {0}.common.text.paths={1}"
STUDIES = {
    "control": "control.steps=5 control.layers=2 control.sequence_tokens=16",
    "ladder": 'ladder.layers=[2,3] ladder.seeds=[1,2] ladder.arms=["standard","block"]',
    "dynamics": "dynamics.layers=2 dynamics.seeds=[0] dynamics.tokens=24576 dynamics.sequence_tokens=32",
    "depth": 'depth.layers=2 depth.tokens=24576 depth.sequence_tokens=32 depth.arms=["standard","block"]',
    "ablate": 'ablate.layers=2 ablate.seeds=[1,2] ablate.arms=["standard","full"] ablate.learning_rate=0.005',
    "sweep": "sweep.parameters=30000 sweep.seeds=[1] sweep.width_ratios=[5.0] sweep.head_ratios=[0.3]",
}
WITH_TEXT = ("ladder", "ablate", "sweep")
WITH_DATA = ("control", "dynamics", "depth")


def in_small(text: Path) -> list[str]:
    """Changes that make a reproduction of minutes, on this text."""
    paths = json.dumps([str(text)])
    words = " ".join(STUDIES.values()).split() + [f"{name}.data={paths}" for name in WITH_DATA]
    return words + " ".join(COMMON.format(name, paths) for name in WITH_TEXT).split()


@dataclass(frozen=True)
class Case:
    """`attnres reproduce` with these changes, writing to `out` and saying what it does in `log`."""

    changes: list[str]
    out: Path
    log: Path

    def undisturbed(self) -> float:
        """Run it to its end; the seconds it took."""
        begin = time.monotonic()
        status = self._start().wait()
        assert status == 0, f"ended with {status}; see {self.log}"
        return time.monotonic() - begin

    def disturbed(self, moments: list[float]) -> list[str]:
        """Run it with a kill so many seconds after each start, then to its end; what each kill met."""
        met = [self._killed(seconds, alone=n % 2 == 0) for n, seconds in enumerate(moments)]
        self.undisturbed()
        return met

    def _killed(self, seconds: float, alone: bool) -> str:
        process = self._start()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            workers = [] if alone else _children(process.pid)
            process.kill()
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            process.wait()
            whom = "the command" if alone else f"the command and {len(workers)} runs"
            return f"{whom} after {seconds:.0f} s, {len(list(self.out.glob('*/runs/*/metrics.jsonl')))} runs begun"
        raise SystemExit(f"it was over before the kill after {seconds:.0f} s; see {self.log}")

    def _start(self) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "attention_residuals.cli", "reproduce", *self.changes, "--out", str(self.out)]
        with self.log.open("ab") as file:
            return subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)


def _children(parent: int) -> list[int]:
    """Processes that `parent` started and that are still there."""
    listed = subprocess.run(["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = (map(int, line.split()) for line in listed.stdout.splitlines())
    return [pid for pid, its_parent in pairs if its_parent == parent]


def random_moments(kills: int, seconds: float) -> list[float]:
    """Seconds from each start to its kill, for kills anywhere in the middle nine tenths of the whole."""
    chance = random.Random(time.time_ns())
    points = sorted(chance.uniform(0.05, 0.95) * seconds for _ in range(kills))
    return [after - before for before, after in itertools.pairwise([0.0, *points])]


def tables(out: Path) -> dict[str, list[str]]:
    """The lines of all tables in the reports of a reproduction, without columns of times."""
    return {str(path.relative_to(out)): _without_times(path) for path in sorted(out.rglob("report.md"))}


def _without_times(report: Path) -> list[str]:
    """Without columns of times, and without what stands under a heading of times, such as "Equal time"."""
    kept, left_out, heading = [], set[int](), ""
    for line in report.read_text().splitlines():
        if line.startswith("#"):
            heading = line
        if not line.startswith("|") or "time" in heading:
            left_out = set()
            continue
        cells = line.strip("|").split("|")
        if not left_out:
            left_out = {-1, *(i for i, cell in enumerate(cells) if re.search(r"time|\bms\b|seconds|step", cell))}
        kept.append("|".join(cell for i, cell in enumerate(cells) if i not in left_out))
    return kept


def main(folder: Path, kills: int, whole: Path | None, seconds: float) -> int:
    """Run it killed, and undisturbed before unless `whole` is that; 0 if their tables are the same."""
    folder.mkdir(parents=True)
    changes: list[str] = []
    if whole is None:
        text, whole = folder / "text.txt", folder / "whole"
        text.write_text("".join(f"line {i}: {i * i} is the square of {i}.\n" for i in range(6000)))
        changes = in_small(text)
        seconds = Case(changes, whole, folder / "whole.log").undisturbed()
    met = Case(changes, folder / "killed", folder / "killed.log").disturbed(random_moments(kills, seconds))
    expected, found = tables(whole), tables(folder / "killed")
    same = {name: found.get(name) == lines for name, lines in expected.items()}
    print(
        json.dumps({"seconds": seconds, "kills": met, "rows": {k: len(v) for k, v in expected.items()}, "same": same})
    )
    return 0 if all(same.values()) and expected.keys() == found.keys() else 1


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="a new one")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--against", type=Path, help="an undisturbed reproduction of the default size")
    parser.add_argument("--seconds", type=float, default=7200, help="about what that takes here")
    return parser.parse_args()


if __name__ == "__main__":
    asked = _asked()
    sys.exit(main(asked.folder, asked.kills, asked.against, asked.seconds))
