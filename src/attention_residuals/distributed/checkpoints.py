"""Tensors of several processes as one folder of safetensors files, on `torch.distributed.checkpoint`.

Each process writes one file, of the pieces that are its own; the header says where each piece begins in its whole
tensor, so any other layout of processes, or one process alone, can read them. What several processes hold alike is
written by one of them. A folder of plain safetensors files reads the same: each tensor is its own only piece.
"""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_saver import async_save

from attention_residuals.errors import InputError


def open_writers_group() -> dist.ProcessGroup:
    """A gloo group of all processes for `write_shards` alone, so that no other collective comes between its own.

    Called by all processes, once.
    """
    group = dist.new_group(backend="gloo")
    assert isinstance(group, dist.ProcessGroup)
    return group


class PendingShards:
    """Files that are being written in the background."""

    def __init__(self, future: Future[Any]):
        self._future = future

    def done(self) -> bool:
        """Whether it has come to an end, good or bad."""
        return self._future.done()

    def wait(self) -> None:
        """Return when every process has written and `finish` has run.

        Raises:
            Exception: what went wrong, on whichever process; the same on all of them.
        """
        try:
            self._future.result()
        except CheckpointException as failure:
            error, _ = failure.failures[min(failure.failures)]
            raise error from None


def write_shards(
    folder: Path,
    tensors: Mapping[str, Tensor],
    group: dist.ProcessGroup,
    *,
    note: object = None,
    prepare: Callable[[], object] | None = None,
    finish: Callable[[list[Any]], object] | None = None,
) -> PendingShards:
    """Write what each process of `group` holds, in the background; called by all of them, with one folder.

    The tensors are copied to the CPU first, so they may change when this returns. Names are those of the whole; a
    DTensor is a piece of its whole tensor, a plain tensor is whole, and equal where another process has it too. The
    writing is over when `wait` returns, and only then may the next one of the same group begin.

    Args:
        note: what `finish` is told of this process: whatever can be sent to another one.
        prepare: runs on the first process before any file is written; it makes the folder, and by default nothing else.
        finish: runs on the first process when every file is on its disk, with the notes of all by rank. If it fails,
            the writing has failed on all processes.
    """
    writer = _ShardWriter(
        folder, note, prepare or (lambda: folder.mkdir(parents=True, exist_ok=True)), finish or (lambda notes: None)
    )
    pieces = {name: tensor.detach() for name, tensor in tensors.items()}
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    future = async_save(pieces, storage_writer=writer, planner=planner, process_group=group)
    assert isinstance(future, Future)
    return PendingShards(future)


class ShardFolder:
    """The tensors in a folder of safetensors files, whoever wrote them. To open it reads the headers alone.

    `forms` has every whole tensor by name on the meta device: shape and type. Reading needs no process group; each
    process reads for itself and waits for none. Layout and number of processes may be others than at writing.

    Raises:
        InputError: pieces of a tensor are missing.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._reader = HuggingFaceStorageReader(str(folder))
        self._metadata = self._reader.read_metadata()
        self._reader.set_up_storage_reader(self._metadata, is_coordinator=True)
        self.forms: dict[str, Tensor] = {}
        for name, found in self._metadata.state_dict_metadata.items():
            assert isinstance(found, TensorStorageMetadata)
            if sum(math.prod(piece.sizes) for piece in found.chunks) != math.prod(found.size):
                raise InputError(f"{folder} lacks pieces of {name}; use another folder")
            self.forms[name] = torch.empty(found.size, dtype=found.properties.dtype, device="meta")

    def read_whole(self, names: Iterable[str] | None = None) -> dict[str, Tensor]:
        """Whole tensors on the CPU, all of them or those named, which must be there."""
        wanted = self.forms if names is None else names
        tensors = {name: torch.empty_like(self.forms[name], device="cpu") for name in wanted}
        self.read_into(tensors)
        return tensors

    def read_into(self, tensors: Mapping[str, Tensor]) -> None:
        """Fill tensors in place with those of their names; of a DTensor, the piece that is this process's.

        Raises:
            InputError: one is not there, or has another shape or type. Nothing has changed then.
        """
        for name, tensor in tensors.items():
            if name not in self.forms:
                raise InputError(f"{self.folder} has no tensor {name}; read those that it has")
            form = self.forms[name]
            if (form.shape, form.dtype) != (tensor.shape, tensor.dtype):
                raise InputError(
                    f"{name} is {form.dtype} {list(form.shape)} in {self.folder}, not {tensor.dtype} "
                    f"{list(tensor.shape)}; read it into a tensor of its own form"
                )
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        planner.set_up_planner(dict(tensors), self._metadata, is_coordinator=True)
        with torch.no_grad():
            self._reader.read_data(planner.finish_plan(planner.create_local_plan()), planner).wait()


def gather_from_all(value: Any, group: dist.ProcessGroup | None = None) -> list[Any]:
    """What each process says, by rank; called by all. Without processes, what this one says."""
    if not dist.is_initialized():
        return [value]
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group=group)
    return found


class _ShardWriter(HuggingFaceStorageWriter):
    """Torch's writer with a step before and one after all files, both on the first process, and files that are synced.

    Torch brackets both steps with collectives and hands a failure of any process to all.
    """

    def __init__(
        self, folder: Path, note: object, prepare: Callable[[], object], finish: Callable[[list[Any]], object]
    ):
        super().__init__(str(folder), save_distributed=True)
        self.sync_files = False  # torch would sync a file whose last bytes are still in the stream's buffer
        self._folder, self._note, self._prepare, self._finish = folder, note, prepare, finish
        self._notes: list[Any] = []

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return replace(plan, storage_data=self._note)

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        self._notes = [plan.storage_data for plan in plans]
        self._prepare()
        return super().prepare_global_plan(plans)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[Any]:
        written = super().write_data(plan, planner)
        for name in {result.storage_data.relative_path for result in written.value()}:
            with (self._folder / name).open("r+b") as file:
                os.fsync(file.fileno())
        return written

    def finish(self, metadata: Metadata, results: list[list[Any]]) -> None:
        super().finish(metadata, results)
        _require_written(self._folder, metadata)
        self._finish(self._notes)


def _require_written(folder: Path, planned: Metadata) -> None:
    """Refuse to go on if the first process does not see all that the others wrote."""
    forms = ShardFolder(folder).forms
    lost = [
        name
        for name, tensor in planned.state_dict_metadata.items()
        if isinstance(tensor, TensorStorageMetadata) and (name not in forms or forms[name].shape != tensor.size)
    ]
    if lost:
        raise InputError(
            f"{folder} has not all pieces of {len(lost)} tensors, {lost[0]} first, though they were written; "
            "choose a folder that every process sees"
        )
