"""The command `attnres report`."""

import argparse
from pathlib import Path

from attention_residuals.experiments.studies.reports import write_report


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    parser.add_argument("folder", type=Path, help="the folder of a comparison or a study")
    parser.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> None:
    print(f"Report: {write_report(options.folder)}")
