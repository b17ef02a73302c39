"""Checkpoints a run can be resumed from to the last bit: saved, loaded, found again, pruned.

A checkpoint is the folder `step-00001234` with

- `model.safetensors`: the weights by name,
- `optimizer.safetensors`: the state of each parameter as `optimiser/parameter/key`,
  (or, if several processes wrote it, `shard-*.safetensors`: pieces of both; see `shared_checkpoints`)
- `state.json`: the step and what the run wants to know again,
- `manifest.json`: size and SHA-256 of the other files.

A name of that form stands only for a whole checkpoint: a process killed at any moment loses at most the save it was in.
One process at a time writes to a folder (`run_lock`).
"""

import json
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from attention_residuals.configs import to_plain
from attention_residuals.distributed.checkpoints import ShardFolder
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
    forms,
    fresh_moments,
    is_moment,
    model_tensors,
    optimizer_tensors,
    require_model_fits,
    require_optimizers_fit,
    weights_of,
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
    require_latest(folder, step)
    state = state_of(step, describe_optimizers([model], optimizers), facts)
    tensors = {WEIGHTS: model_tensors(model), OPTIMIZER: optimizer_tensors(model, optimizers)}
    return write_checkpoint(checkpoint_path(folder, step), tensors, state)


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint of a step is."""
    return folder / f"step-{step:08d}"


def state_of(step: int, optimizers: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What `state.json` holds; `optimizers` describe those of the whole model."""
    return {"step": step, "optimizers": optimizers, "facts": to_plain(facts)}


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
    saved = ShardFolder(path)
    require_fit(saved, forms(weights_of([model])), describe_optimizers([model], optimizers))
    return restore(saved, [model], optimizers)


def require_fit(saved: ShardFolder, weights: Mapping[str, str], optimizers: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of another model, or of other optimisers, than those whose forms and descriptions are given.

    Raises:
        InputError: it says what differs.
    """
    there = {name: form for name, form in saved.forms.items() if not is_moment(name)}
    require_model_fits(saved.folder, forms(there), weights)
    require_optimizers_fit(saved.folder, _read_state(saved.folder)["optimizers"], optimizers)


def restore(saved: ShardFolder, parts: Sequence[nn.Module], optimizers: Mapping[str, Optimizer]) -> dict[str, Any]:
    """Put a checkpoint that fits into the parts of a model and their optimisers; returns its facts and its `step`."""
    moments = {name: form for name, form in saved.forms.items() if is_moment(name)}
    saved.read_into(weights_of(parts))
    saved.read_into(fresh_moments(moments, parts, optimizers))
    state = _read_state(saved.folder)
    return {**state["facts"], "step": state["step"]}


def read_weights(path: Path) -> dict[str, Tensor]:
    """The whole model's weights by name, on the CPU."""
    saved = ShardFolder(path)
    return saved.read_whole(name for name in saved.forms if not is_moment(name))


def read_facts(path: Path) -> dict[str, Any]:
    """What a checkpoint that is whole knows beside its tensors: the facts it was saved with."""
    return _read_state(path)["facts"]


def _read_state(path: Path) -> dict[str, Any]:
    return json.loads((path / STATE).read_bytes())


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


def require_latest(folder: Path, step: int) -> None:
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
