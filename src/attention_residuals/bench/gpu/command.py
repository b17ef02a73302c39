"""The command: what it takes, what it needs, and the parts in their order."""

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from attention_residuals.bench.gpu.parts import PARTS, Run
from attention_residuals.bench.gpu.schedule import Clock, exit_at, run_parts
from attention_residuals.bench.gpu.settings import REAL, TINY, Settings
from attention_residuals.bench.gpu.writing import Report, describe_gpu
from attention_residuals.errors import InputError

SECONDS = 290.0
GRACE_SECONDS = 10.0
"""After so much more the process ends whatever it is in; what was measured is written by then."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the parts. Exit status: 0, 1 if a check failed, 2 for what the user can mend."""
    options = _parser().parse_args(arguments)
    try:
        settings = _settings(options.tiny)
        if options.out.exists():
            raise InputError(f"{options.out} exists; give --out a folder that does not")
        unknown = [name for name in options.parts if name not in PARTS]
        if unknown:
            raise InputError(f"'{unknown[0]}' is no part; there are {', '.join(PARTS)}")
        if not options.seconds > 0:
            raise InputError(f"seconds is {options.seconds}; it must be a number above 0")
    except InputError as error:
        print(f"attnres: {error}", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True)
    report = Report(options.out, describe_gpu(settings.device))
    exit_at(options.seconds + GRACE_SECONDS)
    run = Run(settings, report)
    chosen = {name: part for name, part in PARTS.items() if not options.parts or name in options.parts}
    run_parts(chosen, run, Clock(options.seconds), report)
    print(f"Results: {options.out}")
    return 0 if run.verdicts.all_right else 1


def _settings(tiny: bool) -> Settings:
    """What to run here.

    Raises:
        InputError: no Triton, or no GPU, and not the interpreter either.
    """
    if importlib.util.find_spec("triton") is None:
        raise InputError("triton is not installed; pip install triton")
    if torch.cuda.is_available():
        return TINY.on("cuda") if tiny else REAL
    if not tiny:
        raise InputError("torch finds no CUDA device here; run this on a machine with an NVIDIA GPU")
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise InputError("torch finds no CUDA device here; --tiny can do without one under TRITON_INTERPRET=1")
    os.environ["ATTNRES_NATIVE"] = "0"  # or reads of CPU tensors would take the C++ kernels
    return TINY


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attention_residuals.bench.gpu", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder to write, which must not exist")
    add("--tiny", action="store_true", help="tiny shapes, to see that everything works")
    add("--seconds", type=float, default=SECONDS, help="the whole run may take so long")
    add("--parts", nargs="+", default=[], metavar="NAME", help=f"{', '.join(PARTS)}; empty: all")
    return parser
