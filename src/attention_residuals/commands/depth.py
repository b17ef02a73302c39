"""The command `attnres depth`."""

import argparse
import time
from pathlib import Path

from rich.console import Console

from attention_residuals.commands.arm_studies import add_arm_options, fields_of, run_arm_study
from attention_residuals.commands.extras import require_report_extras
from attention_residuals.experiments.arm_studies import DepthStudy


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    parser.add_argument("--runs", nargs="+", type=Path, metavar="RUN", help="runs or studies that exist: train nothing")
    add_arm_options(parser, DepthStudy)
    parser.set_defaults(command=_depth)


def _depth(options: argparse.Namespace) -> None:
    if options.runs:
        require_report_extras()
        from attention_residuals.experiments.depth.runs import map_runs

        out = options.out or Path("runs") / time.strftime("depth-%Y%m%d-%H%M%S")
        print(f"Report: {map_runs(options.runs, out, Console())}")
        return
    options.out = options.out or Path("runs/depth")
    run_arm_study(DepthStudy(**fields_of(options)), options)
