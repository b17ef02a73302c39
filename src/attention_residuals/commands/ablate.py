"""The command `attnres ablate`."""

import argparse

from attention_residuals.commands.studies import add_study_options, common_of, run_command
from attention_residuals.experiments.ablation.study import LAYERS, Ablation, all_arms, default_arms


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    add_study_options(parser, "ablate")
    add = parser.add_argument
    add("--depth", type=int, default=LAYERS, metavar="LAYERS", help="layers; every other size follows from it")
    told = "first: the baseline; empty: the paper's; all: and rivals"
    add("--models", "--arms", nargs="+", default=[], metavar="NAME", help=told)
    add("--lr", type=float, default=None, help="learning rate of all runs; empty: found on the baseline")
    parser.set_defaults(command=_ablate)


def _ablate(options: argparse.Namespace) -> None:
    named = tuple(options.models) or default_arms(options.depth)
    arms = all_arms(options.depth) if named == ("all",) else named
    common = common_of(options)
    run_command(Ablation(arms, options.depth, tuple(options.seeds), options.lr, common), common, options)
