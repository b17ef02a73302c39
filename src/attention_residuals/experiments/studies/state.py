"""How far the runs of a study are, read from their folders. Knows no torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attention_residuals.errors import InputError

STUDY = "study.json"
PLAN = "plan"
RUNS = "runs"
LOGS = "logs"
LOCKS = "locks"
TEXT = "text.json"
"""What there is to say about the text of all runs."""
STOPPED = "stopped.json"
"""In the folder of a run that could not be trained to its end, with the reason."""

TAIL_BYTES = 4096
"""A line of metrics is far shorter."""


@dataclass(frozen=True)
class RunState:
    """One run. `final` is the last line of its metrics once it has finished, `stopped` why it had to stop."""

    step: int = 0
    final: dict[str, Any] | None = None
    stopped: str | None = None

    @property
    def ended(self) -> bool:
        """Nothing more will happen to it."""
        return self.final is not None or self.stopped is not None


def run_state(path: Path, analyses: tuple[str, ...] = ()) -> RunState:
    """How far the run in folder `path` is; it has finished once the results of its `analyses` are there too."""
    if (path / STOPPED).exists():
        return RunState(stopped=json.loads((path / STOPPED).read_text())["reason"])
    last = _last_line(path / "metrics.jsonl")
    if not last.get("final"):
        return RunState(step=last.get("step", 0))
    if (path / "validation.json").exists() and all((path / f"{name}.json").exists() for name in analyses):
        return RunState(final=last)
    return RunState(step=json.loads((path / "config.json").read_text())["config"]["steps"])


def _last_line(file: Path) -> dict[str, Any]:
    """The last whole line of a file of JSON lines, empty if there is none."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - TAIL_BYTES))
            lines = opened.read().split(b"\n")[:-1]
    except OSError:
        return {}
    return json.loads(lines[-1]) if lines else {}


def read_plan(folder: Path) -> list[dict[str, Any]]:
    """The planned runs of a study as plain objects, in the order they were planned.

    Raises:
        InputError: the folder is no study's.
    """
    if not (folder / STUDY).exists():
        raise InputError(f"{folder} is no study: it has no {STUDY}")
    plans = [json.loads(file.read_text()) for file in (folder / PLAN).glob("*.json")]
    return sorted(plans, key=lambda plan: (plan["number"], plan["run"]["name"]))
