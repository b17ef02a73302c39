"""Tensors as safetensors, in one file or in several with an index, in a folder that appears whole or not at all."""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from attention_residuals.dialects.digests import header
from attention_residuals.dialects.reading import CONFIG, INDEX, WEIGHTS
from attention_residuals.errors import InputError, is_count

SHARD_BYTES = 5 * 10**9
"""What is usual in one file: it is copied, and read again after a fault, as a whole."""


class Piece(NamedTuple):
    """A tensor to be written: its name, its size, and how to make it when its file is written."""

    name: str
    bytes: int
    make: Callable[[], Tensor]


def require_shard(shard_bytes: int) -> None:
    """Refuse files of no size.

    Raises:
        InputError: it names the number.
    """
    if not is_count(shard_bytes):
        raise InputError(f"shard_bytes is {shard_bytes!r}; it must be a whole number of at least 1")


def write_folder(folder: Path, config: dict[str, Any], pieces: Sequence[Piece], shard_bytes: int) -> None:
    """Write config and tensors. No more than one file's tensors are in memory beside the model's own.

    Args:
        folder: must not exist.
        config: the `config.json`.
        pieces: the tensors in order.
        shard_bytes: bytes of tensors in a file at most; a tensor larger than that has one to itself.

    Raises:
        InputError: the folder exists, or cannot be written.
    """
    with _at_once(folder) as temporary:
        shards = _shards(pieces, shard_bytes)
        names = [f"model-{n:05}-of-{len(shards):05}.safetensors" for n in range(1, len(shards) + 1)]
        if len(shards) == 1:
            names = [WEIGHTS]
        for name, shard in zip(names, shards, strict=True):
            tensors = {piece.name: piece.make() for piece in shard}
            save_file(tensors, temporary / name, header(tensors))
        if len(shards) > 1:
            places = {piece.name: name for name, shard in zip(names, shards, strict=True) for piece in shard}
            total = {"total_size": sum(piece.bytes for piece in pieces)}
            _write_json(temporary / INDEX, {"metadata": total, "weight_map": dict(sorted(places.items()))})
        _write_json(temporary / CONFIG, config)


def _shards(pieces: Sequence[Piece], shard_bytes: int) -> list[list[Piece]]:
    shards: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces:
        if shards[-1] and size + piece.bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(piece)
        size += piece.bytes
    return shards


@contextmanager
def _at_once(folder: Path) -> Iterator[Path]:
    """A folder beside the wanted one, which takes its place once all of it is on the disk."""
    if folder.exists():
        raise InputError(f"{folder} exists; name another folder, or remove it first")
    temporary = folder.with_name(f".{folder.name}.tmp")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)  # left by a process that was killed
        temporary.mkdir()
        yield temporary
        for file in temporary.iterdir():
            with file.open("r+b") as stream:
                os.fsync(stream.fileno())
        temporary.rename(folder)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{folder} cannot be written ({error}); make room there, or name another folder") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _write_json(file: Path, content: dict[str, Any]) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n")
