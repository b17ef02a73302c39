"""The command `attnres convert`."""

import argparse
from pathlib import Path

from attention_residuals.dialects import DIALECTS, SHARD_BYTES, dialect_of, find_dialect, load, save
from attention_residuals.dialects.reading import read_config
from attention_residuals.errors import InputError
from attention_residuals.models import Decoder
from attention_residuals.train import load_trained


def add_convert(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command to those of `attnres`."""
    parser = commands.add_parser("convert", help="write a model under the names of another system, or under ours")
    add = parser.add_argument
    add("source", type=Path, metavar="IN", help="a run with checkpoints, or a folder in a dialect that is known")
    add("out", type=Path, metavar="OUT", help="folder to write, which must not exist")
    known = "; ".join(f"{dialect.name}: {dialect.summary}" for dialect in DIALECTS.values())
    add("--to", required=True, metavar="DIALECT", help=known)
    add("--checkpoint", type=int, default=None, metavar="STEP", help="of a run; empty: the latest that is whole")
    add("--shard-bytes", type=int, default=SHARD_BYTES, metavar="N", help="bytes of a weight file at most")
    parser.set_defaults(command=_convert, stopped="stopped; nothing was written")


def _convert(options: argparse.Namespace) -> None:
    dialect = find_dialect(options.to)
    if options.out.exists():
        raise InputError(f"{options.out} exists; name another folder, or remove it first")
    model = _model(options.source, options.checkpoint)
    save(model, options.out, dialect, shard_bytes=options.shard_bytes)
    print(f"Written as {dialect.name}: {options.out}")


def _model(source: Path, step: int | None) -> Decoder:
    """The model of a folder, which tells by its config what it is."""
    plain = read_config(source)
    dialect = dialect_of(plain)
    if dialect is None and "config" not in plain:
        raise InputError(f"{source} is no run, and its config is of no dialect that is known: {', '.join(DIALECTS)}")
    if dialect is None:
        return load_trained(source, step=step).model
    if step is not None:
        raise InputError(f"--checkpoint is {step}, and {source} is no run with checkpoints but one model; leave it out")
    return load(source, dialect)
