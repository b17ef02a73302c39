"""Writes that survive a killed process, a power cut and a full disk: a name stands only for bytes that are there."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attention_residuals.errors import REFUSALS, InputError


@contextmanager
def explain_refusals(what: object, advice: str) -> Iterator[None]:
    """Tell a disk's refusal to write `what` in one sentence that ends with `advice`.

    Raises:
        InputError: the disk refused.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        raise InputError(f"{what} cannot be written ({error.strerror}); {advice}") from error


def sync_file(path: Path) -> None:
    """Wait until a file's bytes are on the disk."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until a folder's names are on the disk; nothing to do on Windows, which cannot open a folder."""
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_bytes(path: Path, content: bytes) -> None:
    """Give a file new content at one stroke: whoever reads it sees all of the old or all of the new."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        temporary.write_bytes(content)
        sync_file(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def cut_file(path: Path, size: int) -> None:
    """Cut a file to its first `size` bytes, at one stroke and without room on the disk."""
    with path.open("r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())
