"""The command `attnres dynamics`."""

import argparse
from pathlib import Path

from attention_residuals.commands.arm_studies import add_arm_options, fields_of, run_arm_study
from attention_residuals.experiments.arm_studies import DynamicsStudy


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    add_arm_options(parser, DynamicsStudy)
    parser.set_defaults(command=_dynamics)


def _dynamics(options: argparse.Namespace) -> None:
    options.out = options.out or Path("runs/dynamics")
    run_arm_study(DynamicsStudy(**fields_of(options)), options)
