"""A run's folder: `config.json` at its start, `metrics.jsonl` line by line, other results as JSON files beside them."""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attention_residuals.configs import to_plain
from attention_residuals.errors import InputError
from attention_residuals.train.durable import replace_bytes

METRICS = "metrics.jsonl"


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Writes what a run leaves behind. Every line reaches the disk as it is written, so a killed run can be read."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """Make the folder.

        Raises:
            InputError: it exists already; nothing is ever overwritten.
        """
        require_absent(path)
        path.mkdir(parents=True)
        return cls(path)

    @classmethod
    def reopen(cls, path: Path, step: int, name: str = METRICS) -> "RunFolder":
        """Open the folder of an earlier run to go on after `step`; the file `name` keeps its lines up to that step.

        Later lines will be written again, and one that a kill cut short was never whole. Hold `run_lock` meanwhile.

        Raises:
            InputError: there is no such folder.
        """
        if not path.is_dir():
            raise InputError(f"{path} is no run folder; name the folder of an earlier run")
        metrics = path / name
        if metrics.exists():
            replace_bytes(metrics, _lines_up_to(metrics.read_bytes(), step))
        return cls(path)

    def write_json(self, name: str, content: Any) -> None:
        """Write one JSON file, dataclasses as objects that name their type."""
        (self.path / name).write_text(json.dumps(to_plain(content), indent=2) + "\n")

    def write_text(self, name: str, content: str) -> None:
        """Write one text file."""
        (self.path / name).write_text(content, encoding="utf-8")

    def log(self, record: Mapping[str, Any], name: str = METRICS) -> None:
        """Append one line to the file `name`."""
        with (self.path / name).open("a") as file:
            file.write(json.dumps(record) + "\n")


def require_absent(path: Path) -> None:
    """Refuse a folder that exists.

    Raises:
        InputError: it does.
    """
    if path.exists():
        raise InputError(f"{path} exists; choose another folder with --out, or remove it first")


def _lines_up_to(metrics: bytes, step: int) -> bytes:
    """Leading lines that are whole, readable and of a step up to `step`; the closing line of a run has no step."""
    kept = []
    for line in metrics.splitlines(keepends=True):
        try:
            record = json.loads(line) if line.endswith(b"\n") else {}
        except ValueError:
            break
        if not isinstance(record, dict) or record.get("step", math.inf) > step:
            break
        kept.append(line)
    return b"".join(kept)
