"""A run's folder: `config.json` at its start, `metrics.jsonl` line by line, other results as JSON files beside them."""

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from attention_residuals.errors import InputError


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

    def write_json(self, name: str, content: Any) -> None:
        """Write one JSON file, dataclasses as objects that name their type."""
        (self.path / name).write_text(json.dumps(to_plain(content), indent=2) + "\n")

    def write_text(self, name: str, content: str) -> None:
        """Write one text file."""
        (self.path / name).write_text(content, encoding="utf-8")

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line to `metrics.jsonl`."""
        with (self.path / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(record) + "\n")


def require_absent(path: Path) -> None:
    """Refuse a folder that exists.

    Raises:
        InputError: it does.
    """
    if path.exists():
        raise InputError(f"{path} exists; choose another folder with --out, or remove it first")


def to_plain(value: Any) -> Any:
    """Dataclasses, enums, paths and tuples as what JSON knows; a dataclass keeps the name of its type."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    return value
