"""Checkpoints of a model that several processes share: written by all in the background, read in any other layout.

They are folders of the same form as those of one process (see `checkpoints`), and each is read as the other is: only
their tensors lie in pieces. All processes see one folder; the first of the group alone makes, names and removes there.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from attention_residuals.distributed.checkpoints import PendingShards, ShardFolder, gather_from_all, write_shards
from attention_residuals.train.checkpoint_files import (
    STATE,
    TENSORS,
    CheckpointError,
    damage,
    prepare_folder,
    publish,
    refusal,
    state_text,
    temporary_of,
)
from attention_residuals.train.checkpoint_state import (
    describe_optimizers,
    forms,
    merge_descriptions,
    moments_of,
    weights_of,
)
from attention_residuals.train.checkpoints import checkpoint_path, require_fit, require_latest, restore, state_of


class PendingSave:
    """A checkpoint that is being written in the background."""

    def __init__(self, target: Path, shards: PendingShards, is_first: bool):
        self._target, self._shards, self._is_first = target, shards, is_first

    def done(self) -> bool:
        """Whether it has come to an end, good or bad."""
        return self._shards.done()

    def wait(self) -> Path:
        """Return its path when it is on the disk under its name.

        Raises:
            CheckpointError: on all processes alike; see `begin_save`.
        """
        try:
            self._shards.wait()
        except BaseException as error:
            if self._is_first and self.done():
                shutil.rmtree(temporary_of(self._target), ignore_errors=True)
            if isinstance(error, OSError):
                raise refusal(self._target, error) from error
            raise
        return self._target


def begin_save(
    folder: Path,
    *,
    step: int,
    parts: Sequence[nn.Module],
    optimizers: Mapping[str, Optimizer],
    facts: Mapping[str, Any],
    group: dist.ProcessGroup,
    after: Callable[[], object] | None = None,
) -> PendingSave:
    """Begin to write the state after `step` steps into `folder`; called by all processes, which may then train on.

    Call `wait` before the next save, and before the run ends. Until then nothing else may use `group`, nor write or
    prune in `folder`.

    Args:
        parts: this process's parts of the model. Names are those of the whole; where another process has the same
            name, both hold pieces of one tensor, or equal tensors.
        optimizers: of the parameters of `parts`; a name stands for the same kind on all processes.
        facts: as in `save_checkpoint`; those of the first process are saved.
        group: of all processes, for this alone; see `open_writers_group`.
        after: runs on the first process when the checkpoint has its name: pruning, for one.

    Raises (from `wait`):
        CheckpointError: as `save_checkpoint`, whichever process met it. Nothing is half written under a name.
    """
    assert step >= 0 and "step" not in facts
    target = checkpoint_path(folder, step)
    state = state_of(step, {}, facts)

    def prepare() -> None:
        require_latest(folder, step)
        prepare_folder(target)

    def finish(descriptions: list[Any]) -> None:
        shards = sorted(file.name for file in temporary_of(target).glob("*" + TENSORS))
        whole = {**state, "optimizers": merge_descriptions(descriptions)}
        try:
            publish(target, (*shards, STATE), state_text(whole))
        finally:
            shutil.rmtree(temporary_of(target), ignore_errors=True)
        if after is not None:
            after()

    tensors = {**weights_of(parts), **moments_of(parts, optimizers)}
    shards = write_shards(
        temporary_of(target),
        tensors,
        group,
        note=describe_optimizers(parts, optimizers),
        prepare=prepare,
        finish=finish,
    )
    return PendingSave(target, shards, is_first=dist.get_rank(group) == 0)


def load_shares(
    path: Path,
    *,
    parts: Sequence[nn.Module],
    optimizers: Mapping[str, Optimizer],
    group: dist.ProcessGroup | None = None,
) -> dict[str, Any]:
    """Put a checkpoint, whoever wrote it, into the parts of each process; returns its facts and its `step`.

    Called by all processes of `group` (None: all there are), in whatever layout; together they hold the whole model.
    The first one reads every byte and looks for damage. Everything is checked first, and on an error, which is the same
    on all processes, model and optimisers are as they were.

    Raises:
        CheckpointError: a file is missing, cut short, altered or added.
        InputError: the checkpoint is of another model or of other optimisers.
    """
    is_first = not dist.is_initialized() or dist.get_rank(group) == 0
    mine = (
        damage(path) if is_first else None,
        forms(weights_of(parts)),
        describe_optimizers(parts, optimizers),
    )
    faults, weights, descriptions = zip(*gather_from_all(mine, group), strict=True)
    if faults[0] is not None:
        raise CheckpointError(faults[0])
    saved = ShardFolder(path)
    require_fit(saved, _merged(weights), merge_descriptions(descriptions))
    return restore(saved, parts, optimizers)


def _merged(weights: Sequence[Mapping[str, str]]) -> dict[str, str]:
    whole: dict[str, str] = {}
    for mine in weights:
        assert all(whole.get(name, form) == form for name, form in mine.items()), "a name stands for one form"
        whole |= mine
    return whole
