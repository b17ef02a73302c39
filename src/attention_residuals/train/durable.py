"""Writes that survive a killed process and a power cut: the bytes reach the disk before a name stands for them."""

import os
from pathlib import Path


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
    temporary.write_bytes(content)
    sync_file(temporary)
    temporary.replace(path)
    sync_folder(path.parent)
