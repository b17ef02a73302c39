"""Checkpoints as folders on the disk: written whole or not at all, and checked before they are believed."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.train.durable import sync_file, sync_folder
from attention_residuals.train.manifests import FORMAT, MANIFEST, file_fault, read_manifest, write_manifest

WEIGHTS = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
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
    folder, temporary = target.parent, target.with_name(DEBRIS + target.name)
    text = json.dumps(state, indent=2) + "\n"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        clear_debris(folder)
        try:
            _write_files(temporary, tensors, text)
            _publish(temporary, target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except (OSError, SafetensorError) as error:
        needed = len(text) + sum(tensor.nbytes for file in tensors.values() for tensor in file.values())
        raise CheckpointError(
            f"cannot write {target.name} in {folder}: {error}; it needs {_megabytes(needed)} and {_free(folder)} are "
            "free there; earlier checkpoints are untouched, so make room or mend this, and resume from the last"
        ) from error
    return target


def _write_files(temporary: Path, tensors: Mapping[str, dict[str, Tensor]], text: str) -> None:
    temporary.mkdir()
    for name, named in tensors.items():
        save_file(named, temporary / name)
    (temporary / STATE).write_text(text)
    write_manifest(temporary, (*tensors, STATE))
    for name in (*tensors, STATE, MANIFEST):
        sync_file(temporary / name)
    sync_folder(temporary)


def _publish(temporary: Path, target: Path) -> None:
    if target.exists():
        if damage(target) is not None:
            discard(target)
        elif _tensors_of(temporary) == _tensors_of(target):
            return
        else:
            raise CheckpointError(f"{target} holds another state of the same step; move it away or save elsewhere")
    temporary.rename(target)
    sync_folder(target.parent)
    sync_folder(target.parent.parent)


def damage(path: Path) -> str | None:
    """What is wrong with a checkpoint, as one sentence; None if every byte is as it was written. Reads all of it."""
    try:
        manifest = read_manifest(path)
        expected = {name: manifest["files"][name] for name in (WEIGHTS, OPTIMIZER, STATE)}
    except OSError as error:
        return f"{path} is no whole checkpoint: {MANIFEST} cannot be read ({error.strerror}); use another one"
    except (ValueError, KeyError):
        return f"{path} is damaged: {MANIFEST} is not what was written; use an earlier checkpoint"
    if manifest["format"] != FORMAT:
        return f"{path} has format {manifest['format']}, this version reads {FORMAT}; use the version that wrote it"
    faults = (file_fault(path / name, identity) for name, identity in expected.items())
    fault = next((fault for fault in faults if fault), None)
    return f"{path} is damaged: {fault}; use an earlier checkpoint" if fault else None


def discard(path: Path) -> None:
    """Remove a checkpoint. It loses its name first: a kill in the middle must not leave half of one under it."""
    debris = path.with_name(DEBRIS + path.name + "-removed")
    path.rename(debris)
    shutil.rmtree(debris)


def clear_debris(folder: Path) -> None:
    """Remove what a killed process left half written or half removed."""
    for path in folder.glob(DEBRIS + "*"):
        shutil.rmtree(path)


def _tensors_of(path: Path) -> list[Any]:
    files = read_manifest(path)["files"]
    return [files[WEIGHTS], files[OPTIMIZER]]


def _free(folder: Path) -> str:
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return _megabytes(shutil.disk_usage(existing).free)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.2f} MB"
