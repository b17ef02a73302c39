"""A reproduction in small that is killed at random moments; a command for people.

`python -m tests.experiments.kills FOLDER [KILLS]` runs `attnres reproduce` once undisturbed and once with KILLS kills
(2) by SIGKILL, each at a random moment, and compares every table of every report. It takes minutes.

What depends on the speed of the machine is left out: tables and columns of times, and the figures.
"""

import json
import random
import re
import shutil
import subprocess
import sys
import time
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


def command(out: Path, text: Path) -> list[str]:
    """`attnres reproduce` in small."""
    paths = json.dumps([str(text)])
    words = " ".join(STUDIES.values()).split() + [f"{name}.data={paths}" for name in WITH_DATA]
    words += " ".join(COMMON.format(name, paths) for name in WITH_TEXT).split()
    return [sys.executable, "-m", "attention_residuals.cli", "reproduce", *words, "--out", str(out)]


def undisturbed(out: Path, text: Path, log: Path) -> float:
    """Run it; the seconds it took."""
    begin = time.monotonic()
    with log.open("w") as file:
        subprocess.run(command(out, text), stdout=file, stderr=subprocess.STDOUT, check=True)
    return time.monotonic() - begin


def disturbed(out: Path, text: Path, log: Path, moments: list[float]) -> list[str]:
    """Run it with a kill after each of these seconds; what was ended when each came."""
    met = []
    with log.open("w") as file:
        for seconds in moments:
            process = subprocess.Popen(command(out, text), stdout=file, stderr=subprocess.STDOUT)
            try:
                process.wait(seconds)
                met.append("over before the kill")
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                met.append(f"after {seconds:.0f} s, {len(list(out.glob('*/runs/*/metrics.jsonl')))} runs begun")
        subprocess.run(command(out, text), stdout=file, stderr=subprocess.STDOUT, check=True)
    return met


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


def main(folder: Path, kills: int) -> int:
    """Run both and say whether their tables are the same."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    text = folder / "text.txt"
    text.write_text("".join(f"line {i}: {i * i} is the square of {i}.\n" for i in range(6000)))
    whole = undisturbed(folder / "whole", text, folder / "whole.log")
    chance = random.Random(time.time_ns())
    moments = [chance.uniform(0.1, 0.7) * whole for _ in range(kills)]
    met = disturbed(folder / "killed", text, folder / "killed.log", moments)
    expected, found = tables(folder / "whole"), tables(folder / "killed")
    same = {name: found.get(name) == lines for name, lines in expected.items()}
    print(json.dumps({"seconds": whole, "kills": met, "rows": {k: len(v) for k, v in expected.items()}, "same": same}))
    return 0 if all(same.values()) and expected.keys() == found.keys() else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2))
