"""The command `attnres sweep`."""

import argparse

from attention_residuals.commands.studies import add_study_options, common_of, run_command
from attention_residuals.experiments.arms import allowed
from attention_residuals.experiments.sweep.study import HEAD_RATIOS, PARAMETERS, WIDTH_RATIOS, Sweep


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    add_study_options(parser, "sweep")
    add = parser.add_argument
    add("--model", "--arm", default=Sweep.arms[1], metavar="NAME", help=f"to hold against standard: {allowed()}")
    add("--ratios", type=float, nargs="+", default=list(WIDTH_RATIOS), metavar="N", help="features a layer")
    add("--head-ratios", type=float, nargs="+", default=list(HEAD_RATIOS), metavar="N", help="heads a layer")
    add("--parameters", type=int, default=PARAMETERS, help="in the sublayers of every shape")
    parser.set_defaults(command=_sweep)


def _sweep(options: argparse.Namespace) -> None:
    ratios, heads, common = tuple(options.ratios), tuple(options.head_ratios), common_of(options)
    arms = (Sweep.arms[0], options.model)
    run_command(Sweep(arms, ratios, heads, options.parameters, tuple(options.seeds), common), common, options)
