"""Jobs that run on a few gloo ranks, report how far they are, and give rows of plain values."""

import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from attention_residuals.bench.progress import Work
from attention_residuals.distributed.ranks import run_on_ranks

Job: TypeAlias = Callable[[int, Callable[[], None]], list[Any]]
"""Of a rank and a function to call after each of its results; it lies at the top of a file."""

DONE = "done"


def on_ranks(ranks: int, job: Job, total: int, text: str, work: Work) -> list[list[Any]]:
    """The results of each rank, with a bar of `total` while they run."""
    with tempfile.TemporaryDirectory() as name, work.stage(text, total):
        folder = Path(name)
        shown = 0

        def watch() -> None:
            nonlocal shown
            done = (folder / DONE).stat().st_size if (folder / DONE).exists() else 0
            for _ in range(done - shown):
                work.advance()
            shown = done

        run_on_ranks(ranks, folder, partial(_body, job=job), watch)
        return [json.loads(_results(folder, rank).read_text()) for rank in range(ranks)]


def _body(rank: int, folder: Path, *, job: Job) -> None:
    def tick() -> None:
        if rank == 0:
            with (folder / DONE).open("a") as file:
                file.write(".")

    _results(folder, rank).write_text(json.dumps(job(rank, tick)))


def _results(folder: Path, rank: int) -> Path:
    return folder / f"rank-{rank}.json"
