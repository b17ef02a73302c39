"""The command `attnres bench`."""

import importlib.util
from pathlib import Path

from rich.console import Console

from attention_residuals.bench.halves import run_apart
from attention_residuals.bench.report import print_half, write_results
from attention_residuals.bench.request import Request
from attention_residuals.bench.results import Half
from attention_residuals.train import require_absent


def bench(request: Request, folder: Path, console: Console) -> list[Half]:
    """Run a benchmark under each setting of the allocator, print its tables and write them into the new `folder`.

    Raises:
        InputError: the folder exists, or a setting cannot be made here.
    """
    require_absent(folder)
    halves: list[Half] = []
    for allocator in request.allocators:
        halves.append(run_apart(request, allocator))
        folder.mkdir(parents=True, exist_ok=True)
        write_results(request, halves, folder)
        print_half(halves[-1], console)
    if importlib.util.find_spec("matplotlib"):
        from attention_residuals.bench.figures import draw

        draw(request.benchmark, halves, folder)
    else:
        say = "no figures without matplotlib: pip install 'attention-residuals[report]'"
        console.print(say, markup=False, highlight=False, soft_wrap=True)
    return halves
