"""The command `attnres export`."""

import argparse
from pathlib import Path

from attention_residuals.commands.extras import require_transformers


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    parser.add_argument("run", type=Path, help="the folder of a run that has checkpoints")
    parser.add_argument("out", type=Path, help="folder to write, which must not exist")
    parser.add_argument(
        "--checkpoint", type=int, default=None, metavar="STEP", help="the step to take; empty: the latest that is whole"
    )
    parser.set_defaults(command=_export)


def _export(options: argparse.Namespace) -> None:
    require_transformers("export")
    from attention_residuals.hf.export import export

    step = export(options.run, options.out, step=options.checkpoint)
    print(f"Exported the weights after step {step:,}: {options.out}")
