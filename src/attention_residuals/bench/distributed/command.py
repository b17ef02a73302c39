"""The command: one sub-command for each kind of number."""

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from attention_residuals.bench.distributed import grid, simulation, steps, volumes
from attention_residuals.bench.distributed.models import Hardware
from attention_residuals.bench.distributed.writing import PROGRAM, Findings, show, write
from attention_residuals.bench.machine import describe_machine
from attention_residuals.bench.progress import Work
from attention_residuals.errors import InputError
from attention_residuals.train import require_absent

FIGURE = "exposed.png"

NAMES: dict[str, Callable[[argparse.Namespace, Work], Findings]] = {
    "grid": lambda options, work: grid.run_grid(options.layers, options.block, work),
    "volumes": lambda options, work: volumes.run_volumes(work),
    "steps": lambda options, work: steps.run_steps(_step_settings(options), work),
    "simulation": lambda options, work: simulation.run_simulation(_simulation_settings(options), work),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of them. Exit status: 0, 1 if something that was checked did not hold, 2 for what the user can mend."""
    options = _parser().parse_args(arguments)
    console, work = Console(), Work(Console(stderr=True))
    work.title(options.name)
    try:
        if options.out is not None:
            require_absent(options.out)
        with work.shown():
            found = NAMES[options.name](options, work)
    except InputError as error:
        print(f"attnres: {error}", file=sys.stderr)
        return 2
    if options.out is not None:
        _write(options, found)
        console.print(f"Results: {options.out}", highlight=False, markup=False, soft_wrap=True)
    show(found, console)
    return 0 if found.right else 1


def _write(options: argparse.Namespace, found: Findings) -> None:
    options.out.mkdir(parents=True)
    if options.name == "simulation" and importlib.util.find_spec("matplotlib"):
        from attention_residuals.bench.distributed.figures import draw_exposed

        title = f"{simulation.MODELS[-1].name}, interleaved-1f1b, {simulation.WIRES[simulation.Wires.LINKS]}"
        draw_exposed(next(table for table in found.tables if table.title == title), options.out / FIGURE)
        found.figures.append(FIGURE)
    settings = {key: value for key, value in vars(options).items() if key not in ("name", "out")}
    machine = None if options.name == "simulation" else describe_machine()
    write(options.name, settings, machine, found, options.out)


def _step_settings(options: argparse.Namespace) -> steps.Settings:
    chosen = {key: value for key, value in vars(options).items() if key not in ("name", "out", "ranks")}
    return steps.Settings(ranks=tuple(options.ranks), **chosen)


def _simulation_settings(options: argparse.Namespace) -> simulation.Settings:
    return simulation.Settings(
        ranks=tuple(options.ranks),
        chunks=tuple(options.chunks),
        gigabytes=tuple(options.gigabytes),
        micro_batches=options.micro_batches,
        hardware=Hardware(tokens=options.tokens, flops=options.flops),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM)
    parts = parser.add_subparsers(dest="name", required=True)
    helps = {
        "grid": "loss and gradients of every small pipeline of two ranks against the whole model",
        "volumes": "what crosses the cuts: enumerated, by the paper, and counted on two and four ranks",
        "steps": "step times on gloo ranks of this machine",
        "simulation": "the share of a step that transport takes in long pipelines, on paper",
    }
    added = {
        name: parts.add_parser(name, help=text, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        for name, text in helps.items()
    }
    for one in added.values():
        one.add_argument("--out", type=Path, help="folder to write, which must not exist; none: print alone")
    _add(added["grid"], layers=(3, "of the model"), block=(4, "sublayers of a block of Block"))
    timed, default = added["steps"], steps.Settings()
    timed.add_argument("--ranks", type=int, nargs="+", default=list(default.ranks), help="how many processes")
    _add(
        timed,
        layers=(default.layers, "of the model"),
        width=(default.width, "of the model"),
        block=(default.block, "sublayers of a block of Block"),
        tokens=(default.tokens, "of a micro-batch"),
        micro_batches=(default.micro_batches, "of a step"),
        rounds=(default.rounds, "in each of which everything runs once"),
    )
    paper, model = added["simulation"], simulation.Settings()
    paper.add_argument("--ranks", type=int, nargs="+", default=list(model.ranks), help="P")
    paper.add_argument("--chunks", type=int, nargs="+", default=list(model.chunks), help="V")
    paper.add_argument("--gigabytes", type=float, nargs="+", default=list(model.gigabytes), help="a second, one way")
    paper.add_argument("--flops", type=float, default=model.hardware.flops, help="that a rank computes in a second")
    _add(
        paper,
        tokens=(model.hardware.tokens, "of a micro-batch"),
        micro_batches=(model.micro_batches, "of a step, a rank"),
    )
    return parser


def _add(parser: argparse.ArgumentParser, **numbers: tuple[int, str]) -> None:
    for name, (default, text) in numbers.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=text)
