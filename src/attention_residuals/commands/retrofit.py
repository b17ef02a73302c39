"""The command `attnres retrofit`."""

import argparse
from pathlib import Path

from attention_residuals.commands.extras import require_transformers
from attention_residuals.errors import InputError
from attention_residuals.retrofit import retrofit_folder
from attention_residuals.streams import Blocks, BlockSize, Layers, ReadScale, Sublayers

UNITS: dict[str, type[BlockSize]] = {"sublayers": Sublayers, "layers": Layers, "blocks": Blocks}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    add = parser.add_argument
    add("model", type=Path, metavar="MODEL_DIR", help="a local folder that transformers loads")
    add("out", type=Path, metavar="OUT", help="folder to write, which must not exist")
    add("--block", default="full", metavar="UNIT:N", help="full, sublayers:4, layers:3 or blocks:8")
    add("--scale", default="sum", choices=[scale.value for scale in ReadScale], help="sum: exact; mean: the paper's")
    add("--no-gradients", action="store_true", help="compare outputs alone, which takes less memory")
    add(
        "--tolerance", type=float, default=None, help="largest difference of outputs; empty: the root of the type's eps"
    )
    parser.set_defaults(command=_retrofit, stopped="stopped; nothing was written")


def _retrofit(options: argparse.Namespace) -> None:
    block = read_block(options.block)
    require_transformers("retrofit")
    report = retrofit_folder(
        options.model,
        options.out,
        block,
        scale=ReadScale(options.scale),
        gradients=not options.no_gradients,
        tolerance=options.tolerance,
    )
    print(report.table())
    print(f"Model: {options.out}")


def read_block(text: str) -> BlockSize:
    """A block size from `full` or `unit:number`.

    Raises:
        InputError: another form.
    """
    unit, _, number = text.partition(":")
    if text == "full":
        return Sublayers(1)
    if unit not in UNITS or not number.isdecimal():
        raise InputError(f"--block is '{text}'; write full, or a number with its unit, for example sublayers:4")
    return UNITS[unit](int(number))
