"""Checkpoints as folders on the disk: written whole or not at all, and checked before they are believed.

A folder holds tensors in `*.safetensors`, `state.json` and `manifest.json`. One process alone names its two files for
the model and the optimisers; those of several processes hold pieces of both and have torch's names.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from attention_residuals.distributed.checkpoints import ShardFolder
from attention_residuals.errors import InputError
from attention_residuals.train.checkpoint_state import forms
from attention_residuals.train.durable import sync_file, sync_folder
from attention_residuals.train.manifests import FORMAT, MANIFEST, file_fault, read_manifest, write_manifest

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
TENSORS = ".safetensors"
"""Ends the name of every file of tensors."""

DEBRIS = ".tmp-"
"""Begins the name of every folder that is being written or removed. After a kill it is litter, whatever it holds."""


class CheckpointError(InputError):
    """A checkpoint that cannot be written, or is damaged; the message says which, why and what to do."""


def write_checkpoint(target: Path, tensors: Mapping[str, dict[str, Tensor]], state: Mapping[str, Any]) -> Path:
    """Write the tensors of each file and `state.json`, then a manifest, and give the folder its name last of all.

    A checkpoint of the same tensors is left as it is; a damaged one in the same place is replaced.

    Raises:
        CheckpointError: it cannot be written, or another intact state of this step is there. Nothing has changed then.
    """
    temporary = temporary_of(target)
    text = state_text(state)
    try:
        prepare_folder(target)
        try:
            for name, named in tensors.items():
                save_file(named, temporary / name)
            publish(target, (*tensors, STATE), text)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        needed = len(text) + sum(tensor.nbytes for file in tensors.values() for tensor in file.values())
        raise refusal(target, error, needed) from error
    return target


def temporary_of(target: Path) -> Path:
    """Where a checkpoint is written before it gets its name."""
    return target.with_name(DEBRIS + target.name)


def state_text(state: Mapping[str, Any]) -> str:
    """What stands in `state.json`."""
    return json.dumps(state, indent=2) + "\n"


def prepare_folder(target: Path) -> None:
    """Make an empty temporary folder for a checkpoint, and clear what a killed process left beside it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    clear_debris(target.parent)
    temporary_of(target).mkdir()


def publish(target: Path, names: Sequence[str], text: str) -> None:
    """Add `state.json` and the manifest of the files `names`, it included, and give the folder its name last of all.

    A checkpoint of the same tensors is left as it is; a damaged one in the same place is replaced.

    Raises:
        CheckpointError: another intact state of this step is there.
        OSError: the disk refuses.
    """
    temporary = temporary_of(target)
    (temporary / STATE).write_text(text)
    write_manifest(temporary, names)
    for name in (*names, MANIFEST):
        sync_file(temporary / name)
    sync_folder(temporary)
    if target.exists():
        if damage(target) is not None:
            discard(target)
        elif _same_tensors(temporary, target):
            return
        else:
            raise CheckpointError(f"{target} holds another state of the same step; move it away or save elsewhere")
    temporary.rename(target)
    sync_folder(target.parent)
    sync_folder(target.parent.parent)


def refusal(target: Path, error: Exception, needed: int | None = None) -> CheckpointError:
    """The disk's refusal of a checkpoint of `needed` bytes, None if that is not known, as one sentence."""
    size = "" if needed is None else f"it needs {_megabytes(needed)} and "
    return CheckpointError(
        f"cannot write {target.name} in {target.parent}: {error}; {size}{_free(target.parent)} are free there; earlier "
        "checkpoints are untouched, so make room or mend this, and resume from the last"
    )


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, as one sentence; None if every byte is as it was written. Reads all of it."""
    try:
        manifest = read_manifest(path)
        files: dict[str, Any] = manifest["files"]
        if STATE not in files or not any(name.endswith(TENSORS) for name in files) or any(map(_is_no_name, files)):
            raise ValueError("other files than a checkpoint has")
    except OSError as error:
        return f"{path} is no whole checkpoint: {MANIFEST} cannot be read ({error.strerror}); use another one"
    except ValueError:
        return f"{path} is damaged: {MANIFEST} is not what was written; use an earlier checkpoint"
    if manifest["format"] != FORMAT:
        return f"{path} has format {manifest['format']}, this version reads {FORMAT}; use the version that wrote it"
    faults = (file_fault(path / name, identity) for name, identity in files.items())
    fault = next((fault for fault in faults if fault), None) or _unexpected(path, files)
    return f"{path} is damaged: {fault}; use an earlier checkpoint" if fault else None


def _is_no_name(name: str) -> bool:
    return Path(name).name != name


def _unexpected(path: Path, files: Mapping[str, Any]) -> str | None:
    """Readers take every file of tensors in the folder, so none may have been added."""
    added = sorted(file.name for file in path.glob("*" + TENSORS) if file.name not in files)
    return f"{added[0]} is not in {MANIFEST}" if added else None


def discard(path: Path) -> None:
    """Remove a checkpoint. It loses its name first: a kill in the middle must not leave half of one under it."""
    debris = path.with_name(DEBRIS + path.name + "-removed")
    path.rename(debris)
    shutil.rmtree(debris)


def clear_debris(folder: Path) -> None:
    """Remove what a killed process left half written or half removed."""
    for path in folder.glob(DEBRIS + "*"):
        shutil.rmtree(path)


def _same_tensors(first: Path, second: Path) -> bool:
    """Whether two folders hold the same bits. Their files may differ: a shard's header is in no fixed order."""
    if _tensor_files(first) == _tensor_files(second):
        return True
    mine, theirs = ShardFolder(first), ShardFolder(second)
    return forms(mine.forms) == forms(theirs.forms) and all(
        torch.equal(*(_bytes(folder.read_whole([name])[name]) for folder in (mine, theirs))) for name in mine.forms
    )


def _tensor_files(path: Path) -> dict[str, Any]:
    return {name: identity for name, identity in read_manifest(path)["files"].items() if name.endswith(TENSORS)}


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.flatten().view(torch.uint8)


def _free(folder: Path) -> str:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return _megabytes(shutil.disk_usage(existing).free)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB"
