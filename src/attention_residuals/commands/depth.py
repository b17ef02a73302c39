"""Commands that look along the depth: `dynamics`, `depth`, `control`."""

import argparse
import importlib.util
import time
from pathlib import Path

from rich.console import Console

from attention_residuals.allocator import keep_freed_memory
from attention_residuals.commands.studies import run_command
from attention_residuals.errors import InputError
from attention_residuals.experiments.arm_studies import POSTNORM_RATE, ArmStudy, DepthStudy, DynamicsStudy
from attention_residuals.experiments.arms import allowed
from attention_residuals.experiments.control import ControlConfig, control
from attention_residuals.experiments.studies.common import Common
from attention_residuals.train import AdamW


def add_depth(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands of this file."""
    dynamics = commands.add_parser(
        "dynamics", help="train models and report loss, sizes and gradients along the depth (Figure 5)"
    )
    _add_study_options(dynamics, DynamicsStudy)
    dynamics.set_defaults(command=_dynamics)
    depth = commands.add_parser(
        "depth", help="where models read over their depth, and what each source is worth (Figures 8 and 9)"
    )
    depth.add_argument("--runs", nargs="+", type=Path, metavar="RUN", help="runs or studies that exist: train nothing")
    _add_study_options(depth, DepthStudy)
    depth.set_defaults(command=_depth)
    _add_control(commands)


def _add_study_options(parser: argparse.ArgumentParser, defaults: type[ArmStudy]) -> None:
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


def _dynamics(options: argparse.Namespace) -> None:
    options.out = options.out or Path("runs/dynamics")
    _run(DynamicsStudy(**_fields(options)), options)


def _depth(options: argparse.Namespace) -> None:
    if options.runs:
        require_report_extras()
        from attention_residuals.experiments.depth.runs import map_runs

        out = options.out or Path("runs") / time.strftime("depth-%Y%m%d-%H%M%S")
        print(f"Report: {map_runs(options.runs, out, Console())}")
        return
    options.out = options.out or Path("runs/depth")
    _run(DepthStudy(**_fields(options)), options)


def _run(study: ArmStudy, options: argparse.Namespace) -> None:
    keep_freed_memory()
    run_command(study, Common(text=study.text, device=study.device), options)


def _fields(options: argparse.Namespace) -> dict:
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


def _add_control(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser(
        "control",
        help="check that zero queries with the exact scale train as the standard residual, in float64",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
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


def require_report_extras() -> None:
    """Refuse to begin what could not be drawn.

    Raises:
        InputError: matplotlib or scipy is not installed.
    """
    if not all(map(importlib.util.find_spec, ("matplotlib", "scipy"))):
        raise InputError("the report needs matplotlib and scipy: pip install 'attention-residuals[report]'")
