"""The command `attnres ladder`."""

import argparse

from attention_residuals.commands.studies import add_study_options, common_of, run_command
from attention_residuals.experiments.arms import allowed
from attention_residuals.experiments.ladder.study import LAYERS, Ladder, scaled_layers


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    add_study_options(parser, "ladder")
    told = f"{allowed()}; first: the baseline"
    parser.add_argument("--models", "--arms", nargs="+", default=list(Ladder.arms), metavar="NAME", help=told)
    parser.add_argument("--scale", type=float, default=1.0, metavar="N", help="N times the parameters at every size")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=None, metavar="LAYERS", help=f"instead of {' '.join(map(str, LAYERS))}"
    )
    parser.set_defaults(command=_ladder)


def _ladder(options: argparse.Namespace) -> None:
    layers = tuple(options.sizes or LAYERS)
    layers = layers if options.scale == 1 else scaled_layers(options.scale, layers)
    common = common_of(options)
    run_command(Ladder(tuple(options.models), layers, tuple(options.seeds), common), common, options)
