"""The command `attnres compare`."""

import argparse
import time
from pathlib import Path

from rich.console import Console

from attention_residuals.allocator import keep_freed_memory
from attention_residuals.commands.devices import device_or_default
from attention_residuals.experiments.arms import allowed
from attention_residuals.experiments.compare import CompareConfig, compare
from attention_residuals.train import AdamW


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    defaults, optimizer = CompareConfig(out=Path()), AdamW()
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    add = parser.add_argument
    add(
        "--models",
        "--arms",
        nargs="+",
        default=list(defaults.models),
        metavar="NAME",
        help=f"{allowed()}; first: the reference",
    )
    add("--depth", type=int, default=defaults.layers, metavar="LAYERS", help="layers; every other size follows from it")
    add(
        "--seeds",
        type=int,
        nargs="+",
        default=list(defaults.seeds),
        metavar="SEED",
        help="a run of each model a seed",
    )
    add("--tokens", type=int, default=defaults.tokens, help="training tokens (bytes) a run")
    add("--batch", type=int, default=defaults.batch_sequences, help="sequences a step")
    add("--sequence", type=int, default=defaults.sequence_tokens, help="tokens a sequence")
    add(
        "--data",
        nargs="+",
        default=[],
        metavar="PATH",
        help="files, folders, tables of text, english, hf:NAME; empty: Python's own",
    )
    add("--validation-share", type=float, default=defaults.validation_share, help="share of the text held out")
    add("--lr", type=float, default=optimizer.learning_rate, help="peak learning rate")
    add("--depth-lr", type=float, default=optimizer.depth_learning_rate, help="peak rate of depth queries and norms")
    add("--device", default=None, help="cpu, cuda, ...; empty: an accelerator if there is one")
    add("--out", type=Path, default=None, help="folder to write, which must not exist; empty: one named by the time")
    parser.set_defaults(command=_compare)


def _compare(options: argparse.Namespace) -> None:
    optimizer = AdamW(learning_rate=options.lr, depth_learning_rate=options.depth_lr)
    config = CompareConfig(
        out=options.out or Path("runs") / time.strftime("compare-%Y%m%d-%H%M%S"),
        models=tuple(options.models),
        layers=options.depth,
        seeds=tuple(options.seeds),
        tokens=options.tokens,
        batch_sequences=options.batch,
        sequence_tokens=options.sequence,
        data=tuple(options.data),
        validation_share=options.validation_share,
        optimizer=optimizer,
        device=device_or_default(options.device),
    )
    console = Console()
    keep_freed_memory()
    report = compare(config, console)
    print(f"Report: {report}")
