"""What a command found: on the terminal, and as `results.json` and `results.md`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from attention_residuals.bench.report import JSON, MARKDOWN
from attention_residuals.bench.results import Table, Value

PROGRAM = "python -m attention_residuals.bench.distributed"


@dataclass(frozen=True)
class Findings:
    """Of one command.

    Args:
        right: whether everything that was checked held.
        notes: what a reader has to know: assumptions, meanings.
        figures: names of the files beside the tables.
    """

    tables: Sequence[Table]
    notes: Sequence[str] = ()
    right: bool = True
    figures: list[str] = field(default_factory=list)


def paragraphs(text: str) -> list[str]:
    """The notes in a text: a blank line is between two of them."""
    return [" ".join(part.split()) for part in text.strip().split("\n\n")]


def show(found: Findings, console: Console) -> None:
    """Print notes and tables as they are written: many columns, which a framed table would cut to the terminal."""
    console.print("\n".join(_lines(found)), highlight=False, markup=False, soft_wrap=True)


def write(
    command: str, settings: dict[str, Any], machine: dict[str, Value] | None, found: Findings, folder: Path
) -> None:
    """Write both files into `folder`, which exists; `machine` is None where nothing depends on it."""
    plain = {
        "command": command,
        "settings": settings,
        "machine": machine,
        "notes": list(found.notes),
        "right": found.right,
        "tables": [table.plain() for table in found.tables],
    }
    (folder / JSON).write_text(json.dumps(plain, indent=2) + "\n")
    lines = [f"# {command}", "", f"`{_typed(command, settings)}`", ""]
    if machine is not None:
        facts = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in machine.items() if value is not None)
        lines += [f"{facts}.", ""]
    (folder / MARKDOWN).write_text("\n".join([*lines, *_lines(found)]) + "\n")


def _lines(found: Findings) -> list[str]:
    lines = [f"- {note}" for note in found.notes]
    for name in found.figures:
        lines += ["", f"![{Path(name).stem}]({name})"]
    for table in found.tables:
        lines += ["", f"## {table.title}", "", *table.markdown()]
    return lines


def _typed(command: str, settings: dict[str, Any]) -> str:
    """The command with every option, as it could be typed again."""
    options = [
        f"--{name.replace('_', '-')} {' '.join(map(_word, value)) if isinstance(value, list) else _word(value)}"
        for name, value in settings.items()
    ]
    return " ".join([PROGRAM, command, *options])


def _word(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
