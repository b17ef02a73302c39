"""Results on the terminal and as files: `results.json` with every number, `results.md` for people."""

import json
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from attention_residuals.bench.request import Request
from attention_residuals.bench.results import Half, Table, Value
from attention_residuals.configs import to_plain

JSON, MARKDOWN = "results.json", "results.md"

LOG_COLUMNS = 130

WORDS = {
    "shipped": "the allocator as shipped",
    "kept": "freed memory kept in the process (`keep_freed_memory()`)",
}


def print_half(half: Half, console: Console) -> None:
    """Show the tables of one half."""
    if not console.is_terminal:  # a log file is taken for a terminal of 80 columns, in which nothing could be read
        console = Console(file=console.file, width=LOG_COLUMNS)
    console.print(f"\nWith {WORDS[half.allocator]}: {_line(half.machine)}", highlight=False, markup=False)
    for table in half.tables:
        shown = RichTable(title=table.title, title_justify="left", caption=_line(_notable(table)))
        for column in table.columns:
            shown.add_column(column.heading, justify="right" if column.form else "left", no_wrap=bool(column.form))
        for row in table.cells():
            shown.add_row(*row)
        console.print(shown)


def write_results(request: Request, halves: Sequence[Half], folder: Path) -> None:
    """Write both files into `folder`, which exists."""
    plain = {
        "benchmark": request.benchmark,
        "settings": to_plain(request),
        "halves": [
            {"allocator": half.allocator, "machine": half.machine, "tables": [table.plain() for table in half.tables]}
            for half in halves
        ],
    }
    (folder / JSON).write_text(json.dumps(plain, indent=2) + "\n")
    (folder / MARKDOWN).write_text("\n".join(_markdown(request, halves)) + "\n")


def _markdown(request: Request, halves: Sequence[Half]) -> list[str]:
    lines = [f"# attnres bench {request.benchmark}"]
    for half in halves:
        lines += [
            "",
            f"## {WORDS[half.allocator][0].upper()}{WORDS[half.allocator][1:]}",
            "",
            f"{_line(half.machine)}.",
        ]
        for table in half.tables:
            lines += ["", f"### {table.title}", ""]
            if facts := _line(_notable(table)):
                lines += [f"{facts}.", ""]
            lines += table.markdown()
    return lines


def _notable(table: Table) -> dict[str, Value]:
    """The facts a reader of the table needs, in units for people."""
    shown: dict[str, Value] = {}
    for key, value in table.facts.items():
        if isinstance(value, str) or value is None:
            continue
        if key == "copy_bytes_per_second":
            shown["copy bandwidth"] = f"{value / 1e9:.1f} GB/s"
        elif key == "floor_seconds":
            shown["floor"] = f"{1e3 * value:.2f} ms"
        elif key == "unit_bytes":
            shown["U"] = f"{value / 2**20:.3g} MiB"
        elif key == "rounds":
            shown[key] = value
    return shown


def _line(facts: dict[str, Value]) -> str:
    return ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in facts.items() if value is not None)
