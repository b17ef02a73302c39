"""Manifests: size and SHA-256 of the files of a folder, so that damage is seen before the files are believed."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"

FORMAT = 1
"""Version of the layout; rises when an older reader would misread a newer folder."""

HASH_BYTES = 1 << 20


def write_manifest(folder: Path, names: Iterable[str]) -> None:
    """Write down what the files `names` are, as they are now."""
    files = {name: file_identity(folder / name) for name in names}
    (folder / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": files}, indent=2) + "\n")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Its `format` and its `files`, each with its identity.

    Raises:
        OSError, ValueError: it cannot be read, or is not what was written.
    """
    manifest = json.loads((folder / MANIFEST).read_bytes())
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict) or "format" not in manifest:
        raise ValueError(f"{MANIFEST} is not what was written")
    return manifest


def file_fault(file: Path, expected: Any) -> str | None:
    """What is wrong with one file, in words; None if every byte is as the manifest has it. Reads all of it."""
    try:
        found = file_identity(file)
    except OSError as error:
        return f"{file.name} cannot be read ({error.strerror})"
    if not isinstance(expected, dict) or expected.keys() != found.keys():
        return f"{MANIFEST} is not what was written"
    if found["bytes"] != expected["bytes"]:
        return f"{file.name} has {found['bytes']} bytes and was written with {expected['bytes']}"
    if found["sha256"] != expected["sha256"]:
        return f"{file.name} has the right size and another checksum than when it was written"
    return None


def file_identity(file: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while part := stream.read(HASH_BYTES):
            digest.update(part)
        size = stream.tell()
    return {"bytes": size, "sha256": digest.hexdigest()}
