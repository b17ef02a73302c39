"""A run's folder: `config.json` at its start, `metrics.jsonl` line by line, other results as JSON files beside them."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attention_residuals.configs import to_plain
from attention_residuals.errors import InputError
from attention_residuals.train.durable import cut_file, explain_refusals, replace_bytes, sync_file, sync_folder

METRICS = "metrics.jsonl"


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """Writes what a run leaves behind. Every line reaches the disk as it is written, so a killed run can be read."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> "RunFolder":
        """Make the folder.

        Raises:
            InputError: it exists already, as nothing is ever overwritten, or it cannot be made.
        """
        require_absent(path)
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise InputError(f"{path} cannot be made ({error.strerror}); choose another folder with --out") from error
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
            cut_file(metrics, _size_up_to(metrics.read_bytes(), step))
        return cls(path)

    def write_json(self, name: str, content: Any) -> None:
        """Write one JSON file, whole or not at all, dataclasses as objects that name their type."""
        self.write_text(name, json.dumps(to_plain(content), indent=2) + "\n")

    def write_text(self, name: str, content: str) -> None:
        """Write one text file, whole or not at all."""
        with self._explained(name):
            replace_bytes(self.path / name, content.encode())

    def log(self, record: Mapping[str, Any], name: str = METRICS) -> None:
        """Append one line to the file `name`."""
        with self._explained(name), (self.path / name).open("a") as file:
            file.write(json.dumps(record) + "\n")

    def sync(self, *names: str) -> None:
        """Wait until the lines of these files are on the disk, for what is about to refer to them."""
        for name in names:
            if (self.path / name).exists():
                with self._explained(name):
                    sync_file(self.path / name)
        sync_folder(self.path)

    @contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """One sentence if the disk refuses.

        Raises:
            InputError: it did.
        """
        advice = f"make room or mend this; a run that has begun goes on with attnres train --resume {self.path}"
        with explain_refusals(self.path / name, advice):
            yield


class SilentFolder(RunFolder):
    """The folder of a run that another process writes."""

    def write_text(self, name: str, content: str) -> None:
        pass

    def log(self, record: Mapping[str, Any], name: str = METRICS) -> None:
        pass

    def sync(self, *names: str) -> None:
        pass


def require_absent(path: Path) -> None:
    """Refuse a folder that exists.

    Raises:
        InputError: it does.
    """
    if path.exists():
        raise InputError(f"{path} exists; choose another folder with --out, or remove it first")


def _size_up_to(metrics: bytes, step: int) -> int:
    """Bytes of the leading lines that are whole, readable and of a step up to `step`; a run's closing line has none."""
    size = 0
    for line in metrics.splitlines(keepends=True):
        try:
            record = json.loads(line) if line.endswith(b"\n") else {}
        except ValueError:
            break
        if not isinstance(record, dict) or record.get("step", math.inf) > step:
            break
        size += len(line)
    return size
