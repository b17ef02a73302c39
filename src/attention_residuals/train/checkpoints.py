"""Checkpoints a run can be resumed from to the last bit: saved, loaded, found again, pruned.

A checkpoint is the folder `step-00001234` with

- `model.safetensors`: the weights by name,
- `optimizer.safetensors`: the state of each parameter as `optimiser/parameter/key`,
- `state.json`: the step and what the run wants to know again,
- `manifest.json`: size and SHA-256 of the other files.

A name of that form stands only for a whole checkpoint: a process killed at any moment loses at most the save it was in.
One process at a time writes to a folder (`run_lock`).
"""

import json
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import nn
from torch.optim import Optimizer

from attention_residuals.configs import to_plain
from attention_residuals.train.checkpoint_files import (
    OPTIMIZER,
    STATE,
    WEIGHTS,
    CheckpointError,
    clear_debris,
    damage,
    discard,
    write_checkpoint,
)
from attention_residuals.train.checkpoint_state import (
    describe_optimizers,
    model_tensors,
    optimizer_tensors,
    require_model_fits,
    require_optimizers_fit,
    restore_model,
    restore_optimizers,
)

_NAME = re.compile(r"step-(\d{8,})")


def save_checkpoint(
    folder: Path, *, step: int, model: nn.Module, optimizers: Mapping[str, Optimizer], facts: Mapping[str, Any]
) -> Path:
    """Write the state after `step` steps into `folder`, which is made if need be, and return the checkpoint's path.

    `facts` is whatever JSON can hold, dataclasses included: config, fingerprint of the data, best loss so far. It is
    the place of the optimisers' options too, such as rates and betas: these belong to the config and are not saved.
    Saving the same state again leaves the checkpoint that is there.

    Raises:
        CheckpointError: the disk is full or refuses, or the folder has an intact checkpoint of a later step or of
            another state of this one. Earlier checkpoints are untouched and nothing half written is left.
    """
    assert step >= 0 and "step" not in facts
    _require_latest(folder, step)
    state = {"step": step, "optimizers": describe_optimizers(model, optimizers), "facts": to_plain(facts)}
    tensors = {WEIGHTS: model_tensors(model), OPTIMIZER: optimizer_tensors(model, optimizers)}
    return write_checkpoint(folder / f"step-{step:08d}", tensors, state)


def load_checkpoint(path: Path, *, model: nn.Module, optimizers: Mapping[str, Optimizer]) -> dict[str, Any]:
    """Put the checkpoint's state into a model and optimisers of the same make; returns its facts and its `step`.

    Everything is checked first, so on an error model and optimisers are as they were. They may be on another device
    than at saving.

    Raises:
        CheckpointError: a file is missing, cut short or altered.
        InputError: the checkpoint is of another model (shapes and types included) or of other optimisers.
    """
    fault = damage(path)
    if fault is not None:
        raise CheckpointError(fault)
    state = json.loads((path / STATE).read_bytes())
    weights, moments = load_file(path / WEIGHTS), load_file(path / OPTIMIZER)
    require_model_fits(path, weights, model)
    require_optimizers_fit(path, state["optimizers"], model, optimizers)
    restore_model(weights, model)
    restore_optimizers(moments, model, optimizers)
    return {**state["facts"], "step": state["step"]}


def read_facts(path: Path) -> dict[str, Any]:
    """What a checkpoint that is whole knows beside its tensors: the facts it was saved with."""
    return json.loads((path / STATE).read_bytes())["facts"]


def latest_checkpoint(folder: Path, report: Callable[[str], object] = warnings.warn) -> Path | None:
    """The intact checkpoint of the highest step in `folder`; None if there is none. `report` is told of damaged ones.

    Every byte of the one returned has been read and is as it was written.
    """
    for path in reversed(checkpoints_by_step(folder).values()):
        fault = damage(path)
        if fault is None:
            return path
        report(fault)
    return None


def prune(folder: Path, keep_last: int, best: int | None = None) -> None:
    """Remove intact checkpoints but the last `keep_last` (at least 1) and that of step `best`.

    Damaged ones neither count nor are they removed: that is for a person to decide. Those kept are read in full.
    """
    assert keep_last >= 1
    intact = 0
    for step, path in reversed(checkpoints_by_step(folder).items()):
        if damage(path) is not None:
            continue
        intact += 1
        if intact > keep_last and step != best:
            discard(path)
    clear_debris(folder)


def _require_latest(folder: Path, step: int) -> None:
    """A save before a later checkpoint would be the first to be pruned, and never be resumed from."""
    for later, path in checkpoints_by_step(folder).items():
        if later > step and damage(path) is None:
            raise CheckpointError(
                f"{folder} has {path.name}, later than step {step} that is to be saved; resume from it, or move it away"
            )


def checkpoints_by_step(folder: Path) -> dict[int, Path]:
    """Folders named as checkpoints, by rising step; whether they are intact is another question."""
    found = {int(match[1]): path for path in folder.glob("step-*") if (match := _NAME.fullmatch(path.name))}
    return dict(sorted(found.items()))
