"""The command `attnres reproduce`: every claim of the paper, one study after the other."""

import argparse
import json
import shutil
from pathlib import Path

from rich.console import Console

from attention_residuals.allocator import keep_freed_memory
from attention_residuals.commands.studies import run_reported
from attention_residuals.configs import first_difference, override, to_plain
from attention_residuals.errors import InputError
from attention_residuals.experiments.ablation.study import Ablation
from attention_residuals.experiments.arm_studies import ArmStudy
from attention_residuals.experiments.control import ControlConfig, control
from attention_residuals.experiments.ladder.study import Ladder
from attention_residuals.experiments.overview import REPRODUCTION, write_overview
from attention_residuals.experiments.printing import say
from attention_residuals.experiments.reproduction import SIZES, Reproduction, sized
from attention_residuals.experiments.studies.common import Common
from attention_residuals.experiments.studies.plan import Study
from attention_residuals.experiments.sweep.study import Sweep
from attention_residuals.train import RunFolder


def add_options(parser: argparse.ArgumentParser) -> None:
    """Give `parser` the options of the command."""
    add = parser.add_argument
    add("assignments", nargs="*", metavar="path=value", help="changes to a study, for example ladder.seeds=[1,2]")
    add("--only", nargs="+", default=[], metavar="NAME", help="of control, ladder, dynamics, depth, ablate, sweep")
    add(
        "--size",
        default="evening",
        metavar="|".join(SIZES),
        help="evening: a bit over two hours on two cores; night: each study as its own command has it, six to seven",
    )
    add("--processes", type=int, default=None, help="runs at a time; empty: one a core")
    add("--threads", type=int, default=1, help="threads of each")
    add(
        "--out",
        type=Path,
        default=Path("runs/reproduction"),
        help="folder; the same command goes on with what is there",
    )
    parser.set_defaults(command=_reproduce, stopped="stopped; the same command goes on from here")


def _reproduce(options: argparse.Namespace) -> None:
    asked, out = override(sized(options.size), options.assignments), options.out
    wanted = _wanted(asked, options.only)
    _open(asked, out)
    keep_freed_memory()
    if "control" in wanted:
        _control_once(asked.control, out / "control")
    for name, study in asked.studies.items():
        if name in wanted:
            say(Console(), f"--- {name}")
            run_reported(study, _common(study), out / name, options)
            write_overview(out)
    print(f"All reports: {write_overview(out)}")


def _wanted(asked: Reproduction, only: list[str]) -> list[str]:
    names = ["control", *asked.studies]
    for name in only:
        if name not in names:
            raise InputError(f"there is no study '{name}'; choose {', '.join(names)}")
    return only or names


def _open(asked: Reproduction, out: Path) -> None:
    """Make the folder, or make sure that it is this reproduction's.

    Raises:
        InputError: it is something else, or was asked with other settings.
    """
    file = out / REPRODUCTION
    if not out.exists():
        RunFolder.create(out).write_json(REPRODUCTION, asked)
    if not file.exists():
        raise InputError(f"{out} exists and is no reproduction; choose another folder with --out")
    if difference := first_difference(json.loads(file.read_text()), to_plain(asked)):
        name, was, now = difference
        raise InputError(f"{out} was started with {name} = {was!r}, not {now!r}; ask as then, or choose another --out")


def _control_once(config: ControlConfig, out: Path) -> None:
    """The control, from its start unless it is done: it takes less than a minute."""
    if not (out / "control.json").exists():
        shutil.rmtree(out, ignore_errors=True)
        control(config, out, Console())


def _common(study: Study) -> Common:
    """What `run_reported` has to know of a study's text and device."""
    if isinstance(study, ArmStudy):
        return Common(text=study.text, device=study.device)
    assert isinstance(study, Ladder | Ablation | Sweep)
    return study.common
