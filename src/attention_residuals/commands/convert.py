"""The command `attnres convert`."""

import argparse
from pathlib import Path

from attention_residuals.dialects import (
    DEPTH_DIALECTS,
    DIALECTS,
    SHARD_BYTES,
    depth_of,
    dialect_of,
    find_dialect,
    is_depth,
    load,
    load_depth,
    save,
    save_depth,
)
from attention_residuals.dialects.reading import CONFIG, read_config
from attention_residuals.dialects.registry import unknown
from attention_residuals.errors import InputError
from attention_residuals.models import Decoder
from attention_residuals.train import load_trained


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    add = parser.add_argument
    add("source", type=Path, metavar="IN", help="a run with checkpoints, or a folder in a dialect that is known")
    add("out", type=Path, metavar="OUT", help="folder to write, which must not exist")
    known = "; ".join(f"{dialect.name}: {dialect.summary}" for dialect in (DEPTH_DIALECTS | DIALECTS).values())
    add("--to", required=True, metavar="DIALECT", help=known)
    add("--depth", action="store_true", help="the depth tensors alone, which every dialect has names for")
    add("--checkpoint", type=int, default=None, metavar="STEP", help="of a run; empty: the latest that is whole")
    add("--shard-bytes", type=int, default=SHARD_BYTES, metavar="N", help="bytes of a weight file at most")
    parser.set_defaults(command=_convert, stopped="stopped; nothing was written")


def _convert(options: argparse.Namespace) -> None:
    dialect = find_dialect(options.to)
    if options.out.exists():
        raise InputError(f"{options.out} exists; name another folder, or remove it first")
    plain = read_config(options.source)
    if dialect is None or options.depth or is_depth(plain):
        _convert_depth(options, plain)
        return
    save(_model(options, plain), options.out, dialect, shard_bytes=options.shard_bytes)
    print(f"Written as {dialect.name}: {options.out}")


def _convert_depth(options: argparse.Namespace, plain: dict[str, object]) -> None:
    dialect = DEPTH_DIALECTS[options.to]
    if is_depth(plain):
        _require_no_step(options)
        part = load_depth(options.source)
    else:
        part = depth_of(_model(options, plain))
    save_depth(part, options.out, dialect, shard_bytes=options.shard_bytes)
    what = dialect.left_out or "the depth tensors alone"
    print(f"Written as {dialect.name}: {options.out}. These are {what}.")


def _model(options: argparse.Namespace, plain: dict[str, object]) -> Decoder:
    """The model of a folder, which tells by its config what it is."""
    dialect = dialect_of(plain)
    if dialect is None and "config" not in plain:
        raise unknown(options.source / CONFIG, plain)
    if dialect is None:
        return load_trained(options.source, step=options.checkpoint).model
    _require_no_step(options)
    return load(options.source, dialect)


def _require_no_step(options: argparse.Namespace) -> None:
    if options.checkpoint is not None:
        raise InputError(
            f"--checkpoint is {options.checkpoint}, and {options.source} is no run with checkpoints but one model; "
            "leave it out"
        )
