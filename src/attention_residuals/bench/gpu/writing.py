"""`results.json` and `results.md`, written anew whenever something is added."""

import json
import os
import platform
from pathlib import Path

import torch

from attention_residuals.bench.results import Table, Value

JSON, MARKDOWN = "results.json", "results.md"


class Report:
    """Everything found so far, in `folder`, which exists."""

    def __init__(self, folder: Path, machine: dict[str, Value]):
        self.folder, self.machine = folder, machine
        self.tables: list[Table] = []
        self.notes: dict[str, str] = {}
        self._write()

    def add(self, table: Table) -> None:
        """One more table; one of the same title is replaced."""
        self.tables = [*(other for other in self.tables if other.title != table.title), table]
        self._write()

    def note(self, part: str, words: str) -> None:
        """How a part ended."""
        self.notes[part] = words
        self._write()

    def _write(self) -> None:
        plain = {
            "machine": self.machine,
            "parts": self.notes,
            "tables": [table.plain() for table in self.tables],
        }
        _replace(self.folder / JSON, json.dumps(plain, indent=2) + "\n")
        _replace(self.folder / MARKDOWN, "\n".join(self._markdown()) + "\n")

    def _markdown(self) -> list[str]:
        facts = ", ".join(
            f"{key.replace('_', ' ')} {value}" for key, value in self.machine.items() if value is not None
        )
        lines = ["# Measured on a GPU", "", f"{facts}.", ""]
        lines += [f"- {part}: {words}" for part, words in self.notes.items()]
        for table in self.tables:
            lines += ["", f"## {table.title}", ""]
            if shown := notable(table):
                lines += [f"{shown}.", ""]
            lines += table.markdown()
        return lines


def notable(table: Table) -> str:
    """The facts a reader of a table needs, in units for people."""
    words = []
    for key, value in table.facts.items():
        if key == "copy_bytes_per_second" and isinstance(value, float | int):
            words.append(f"copy bandwidth {value / 1e9:,.0f} GB/s")
        elif key == "floor_seconds" and isinstance(value, float | int):
            words.append(f"floor {1e3 * value:.4f} ms")
        elif key == "unit_bytes" and isinstance(value, float | int):
            words.append(f"U {value / 2**20:.3g} MiB")
        elif key in ("rounds", "reads", "note"):
            words.append(f"{key} {value}" if key != "note" else str(value))
    return ", ".join(words)


def describe_gpu(device: str) -> dict[str, Value]:
    """What a reader has to know of the machine. No names of hosts, users or folders."""
    import triton

    facts: dict[str, Value] = {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    if device != "cuda":
        return {"device": "none, kernels interpreted", **facts}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "memory_gib": round(properties.total_memory / 2**30),
        "multiprocessors": properties.multi_processor_count,
        "cache_mib": getattr(properties, "L2_cache_size", 0) // 2**20 or None,
        "capability": f"{properties.major}.{properties.minor}",
        "cuda": torch.version.cuda,
        **facts,
    }


def _replace(path: Path, text: str) -> None:
    """Write a file so that whoever ends the process leaves the old one or the new one."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    draft.replace(path)
