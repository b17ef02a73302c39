"""The cache folder, and folders that appear whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attention_residuals.errors import InputError

CACHE_VARIABLE = "ATTNRES_CACHE"


def cache_folder() -> Path:
    """`$ATTNRES_CACHE`, or `~/.cache/attention-residuals`."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "attention-residuals"


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `folder` when the body is done and vanishes if it fails.

    If another process put `folder` there meanwhile, theirs stays: equal names mean equal content.

    Raises:
        InputError: the cache cannot be written.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
    except OSError as error:
        raise InputError(
            f"the cache {folder.parent} cannot be written ({error.strerror}); set {CACHE_VARIABLE} to another folder"
        ) from error
    try:
        yield partial
        try:
            partial.rename(folder)
        except OSError:
            if not folder.exists():
                raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
