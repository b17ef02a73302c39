"""The command `attnres control`."""

import argparse
import time
from pathlib import Path

from rich.console import Console

from attention_residuals.experiments.control import ControlConfig, control


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    defaults = ControlConfig()
    add = parser.add_argument
    add("--depth", type=int, default=defaults.layers, metavar="LAYERS", help="layers; every other size follows from it")
    add("--block", type=int, default=defaults.block, metavar="SUBLAYERS", help="sublayers a block")
    add("--steps", type=int, default=defaults.steps, help="optimiser steps")
    add("--batch", type=int, default=defaults.batch_sequences, help="sequences a step")
    add("--sequence", type=int, default=defaults.sequence_tokens, help="tokens a sequence")
    add("--seed", type=int, default=defaults.seed, help="of weights and batches")
    add("--data", nargs="+", default=[], metavar="PATH", help="as of compare; empty: Python's own")
    add("--out", type=Path, default=None, help="folder to write, which must not exist; empty: one named by the time")
    parser.set_defaults(command=_control, stopped="stopped")


def _control(options: argparse.Namespace) -> None:
    config = ControlConfig(
        layers=options.depth,
        block=options.block,
        steps=options.steps,
        batch_sequences=options.batch,
        sequence_tokens=options.sequence,
        seed=options.seed,
        data=tuple(options.data),
    )
    control(config, options.out or Path("runs") / time.strftime("control-%Y%m%d-%H%M%S"), Console())
