"""The command `attnres count`."""

import argparse

from rich.console import Console
from rich.table import Table

from attention_residuals.configs import override
from attention_residuals.models import ParameterCount, count_parameters
from attention_residuals.recipes import find_recipe


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    parser.add_argument("recipe", help="name of a recipe; attnres train --list has them")
    parser.add_argument("assignments", nargs="*", metavar="path=value", help="changes to it")
    parser.set_defaults(command=_count)


def _count(options: argparse.Namespace) -> None:
    model = override(find_recipe(options.recipe), options.assignments).model
    Console().print(parameter_table(count_parameters(model)))


def parameter_table(count: ParameterCount) -> Table:
    """A row a part, and the totals."""
    table = Table("")
    for name in ("places", "parameters", "share", "at work for a token"):
        table.add_column(name, justify="right")
    for part in count.parts:
        share = part.parameters / count.parameters
        table.add_row(part.name, f"{part.places:,}", f"{part.parameters:,}", f"{share:.2%}", f"{part.active:,}")
    table.add_section()
    table.add_row("all", "", f"{count.parameters:,}", "", f"{count.active:,}")
    return table
