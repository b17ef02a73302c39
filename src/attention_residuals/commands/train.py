"""The command `attnres train`."""

import argparse
import time
from pathlib import Path

from rich.console import Console

from attention_residuals.allocator import keep_freed_memory
from attention_residuals.configs import override
from attention_residuals.distributed.layout import leads, restarted
from attention_residuals.errors import InputError
from attention_residuals.experiments.single import resume, train, train_or_go_on
from attention_residuals.recipes import RECIPES, find_recipe


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    add = parser.add_argument
    add("recipe", nargs="?", help="name of a recipe; see --list")
    add("assignments", nargs="*", metavar="path=value", help="changes to it, for example steps=2000 optimizer=Muon")
    add("--list", action="store_true", help="list the recipes")
    add("--resume", type=Path, metavar="RUN", help="go on with the run in this folder, from its last checkpoint")
    add(
        "--continue",
        dest="go_on",
        action="store_true",
        help="go on with the run in --out if it is there: for schedulers that start the same command again",
    )
    add("--out", type=Path, default=None, help="folder to write, which must not exist; empty: one named by the time")
    parser.set_defaults(command=_train)


def _train(options: argparse.Namespace) -> None:
    console = Console(quiet=not leads())
    keep_freed_memory()
    if options.list:
        for name, recipe in RECIPES.items():
            print(f"{name:22} {(recipe.__doc__ or '').strip()}")
    elif options.resume is not None:
        resume(options.resume, console, _layout(options))
    elif options.recipe is None:
        raise InputError(f"name a recipe, or --resume RUN; there are {', '.join(RECIPES)}")
    else:
        config = override(find_recipe(options.recipe), options.assignments)
        if options.out is None and (options.go_on or config.parallel.processes > 1):
            raise InputError("a run over several processes, or one to go on with, needs a folder; name it with --out")
        default = Path("runs") / time.strftime(f"{config.name}-%Y%m%d-%H%M%S")
        run = train_or_go_on if options.go_on or restarted() else train
        run(config, options.out or default, console)


def _layout(options: argparse.Namespace) -> tuple[str, ...]:
    """What `--resume` may be given: how the run is spread over processes."""
    given = tuple(word for word in (options.recipe, *options.assignments) if word is not None)
    if options.out or options.go_on or not all(word.startswith("parallel.") for word in given):
        raise InputError(
            "--resume goes on with a run as it was; it takes no recipe, no --out and no path=value but parallel.*"
        )
    return given
