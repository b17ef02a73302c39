"""The command `attnres moe`: depth attention in a mixture of experts and in a dense model of the same active size."""

import argparse
from pathlib import Path

from attention_residuals.commands.studies import run_reported
from attention_residuals.configs import override
from attention_residuals.experiments.moe.study import MixtureStudy


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    add = parser.add_argument
    add("assignments", nargs="*", metavar="path=value", help="changes, for example layers=6 seeds=[1,2,3,4,5]")
    add("--processes", type=int, default=None, help="runs at a time; empty: one a core")
    add("--threads", type=int, default=1, help="threads of each")
    add("--out", type=Path, default=Path("runs/moe"), help="folder; the same command goes on with what is there")
    parser.set_defaults(command=_moe, stopped="stopped; the same command goes on from here")


def _moe(options: argparse.Namespace) -> None:
    study = override(MixtureStudy(), options.assignments)
    run_reported(study, study.common, options.out, options)
