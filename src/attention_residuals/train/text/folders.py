"""The cache folder, and folders that appear whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from attention_residuals.errors import InputError
from attention_residuals.train.durable import explain_refusals
from attention_residuals.train.locks import InUseError, folder_lock

CACHE_VARIABLE = "ATTNRES_CACHE"
PARTIAL = ".partial-"
CONTENT = "content"


def cache_folder() -> Path:
    """`$ATTNRES_CACHE`, or `~/.cache/attention-residuals`."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named) if named else Path.home() / ".cache" / "attention-residuals"


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `folder` when the body is done and vanishes if it fails.

    If another process put `folder` there meanwhile, theirs stays: equal names mean equal content. What a killed process
    left half filled beside it is removed.

    Raises:
        InputError: the cache cannot be written, or its disk is full.
    """
    advice = f"make room there, or set {CACHE_VARIABLE} to another folder"
    with ExitStack() as stack, explain_refusals(f"the cache {folder.parent}", advice):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder.parent)
        content = _claim_partial(folder, stack)
        yield content
        try:
            content.rename(folder)
        except OSError:
            if not folder.exists():
                raise


def _claim_partial(folder: Path, stack: ExitStack) -> Path:
    """An empty folder inside one that this process holds the lock of until `stack` closes and removes both."""
    while True:
        partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}{PARTIAL}", dir=folder.parent))
        stack.callback(shutil.rmtree, partial, ignore_errors=True)
        try:
            stack.enter_context(folder_lock(partial))
            (partial / CONTENT).mkdir()
        except (InUseError, FileNotFoundError):
            continue  # another process took it for abandoned, between its making and the lock
        return partial / CONTENT


def _remove_abandoned(parent: Path) -> None:
    """Remove the partial folders of processes that are gone: those whose lock can be had."""
    for partial in parent.glob(f"*{PARTIAL}*"):
        with suppress(InputError, OSError), folder_lock(partial):
            shutil.rmtree(partial, ignore_errors=True)
