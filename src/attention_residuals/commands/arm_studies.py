"""What the commands of studies at one size, `dynamics` and `depth`, share."""

import argparse
from pathlib import Path
from typing import Any

from attention_residuals.allocator import keep_freed_memory
from attention_residuals.commands.studies import run_command
from attention_residuals.experiments.arm_studies import POSTNORM_RATE, ArmStudy
from attention_residuals.experiments.arms import allowed
from attention_residuals.experiments.studies.common import Common
from attention_residuals.train import AdamW


def add_arm_options(parser: argparse.ArgumentParser, defaults: type[ArmStudy]) -> None:
    """The options that both have, with the defaults of one."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    add = parser.add_argument
    told = f"{allowed()}; first: the reference"
    add("--models", "--arms", nargs="+", default=list(defaults.arms), metavar="NAME", help=told)
    add("--depth", type=int, default=defaults.layers, metavar="LAYERS", help="layers; every other size follows from it")
    add("--seeds", type=int, nargs="+", default=list(defaults.seeds), metavar="SEED", help="a run of each model a seed")
    add("--tokens", type=int, default=defaults.tokens, help="training tokens (bytes) a run")
    add("--batch", type=int, default=defaults.batch_sequences, help="sequences a step")
    add("--sequence", type=int, default=defaults.sequence_tokens, help="tokens a sequence")
    add("--data", nargs="+", default=[], metavar="PATH", help="as of compare; empty: Python's own")
    told = f"peak learning rate of all; empty: {AdamW.learning_rate:g}, in dynamics {POSTNORM_RATE:g} for postnorm"
    add("--lr", type=float, default=None, help=told)
    add("--depth-lr", type=float, default=AdamW.depth_learning_rate, help="peak rate of depth queries and norms")
    add("--device", default="cpu", help="cpu, cuda, ...")
    add("--processes", type=int, default=None, help="runs at once; empty: one a core")
    add("--threads", type=int, default=1, help="threads of each run")
    add("--out", type=Path, default=None, help="folder to write, or to go on with; empty: runs/ and the command's name")
    parser.set_defaults(stopped="stopped; the same command goes on")


def run_arm_study(study: ArmStudy, options: argparse.Namespace) -> None:
    """As `run_command`, with the text and the device that the study has."""
    keep_freed_memory()
    run_command(study, Common(text=study.text, device=study.device), options)


def fields_of(options: argparse.Namespace) -> dict[str, Any]:
    """The study's fields, as asked."""
    rate = AdamW.learning_rate if options.lr is None else options.lr
    return {
        "arms": tuple(options.models),
        "layers": options.depth,
        "seeds": tuple(options.seeds),
        "tokens": options.tokens,
        "batch_sequences": options.batch,
        "sequence_tokens": options.sequence,
        "data": tuple(options.data),
        "optimizer": AdamW(learning_rate=rate, depth_learning_rate=options.depth_lr),
        "device": options.device,
        **({} if options.lr is None else {"learning_rates": {}}),
    }
