"""One process a folder: a run's, or one of the cache that is being filled."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from attention_residuals.errors import InputError
from attention_residuals.train.durable import explain_refusals

if sys.platform == "win32":
    fcntl = None
else:
    import fcntl

LOCK_FILE = "run.lock"
"""Names the process that holds the lock, or held it last: the file is left behind, since only its lock counts."""


class InUseError(InputError):
    """Another process holds the folder."""


@contextmanager
def run_lock(path: Path) -> Iterator[None]:
    """Hold the run folder `path` while the body runs, as `folder_lock` does.

    Raises:
        InputError: there is no such folder, another process holds it, or its disk knows no locks.
    """
    if not path.is_dir():
        raise InputError(f"{path} is no run folder; name the folder of an earlier run")
    with folder_lock(path):
        yield


@contextmanager
def folder_lock(path: Path) -> Iterator[None]:
    """Hold the folder `path` while the body runs.

    The lock is the system's own (`flock`), which ends with the process however it ends, so nothing stale is left.
    Where the system has none (Windows), the file itself is the lock: it is removed at the end, and after a kill it must
    be removed by hand, as the message says.

    Raises:
        InUseError: another process holds it; the message names process and host.
        InputError: its disk knows no locks, or cannot be written.
    """
    with _locked_file(path) if fcntl else _exclusive_file(path):
        yield


@contextmanager
def _locked_file(path: Path) -> Iterator[None]:
    assert fcntl is not None
    with explain_refusals(path / LOCK_FILE, "see to the permissions of the folder and its disk"):
        file = (path / LOCK_FILE).open("a+")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(f"{path} is in use by {_holder(path)}; wait for it, or stop it first") from None
        except OSError as error:
            raise InputError(f"{path} cannot be locked ({error.strerror}); use a disk that has file locks") from error
        with suppress(OSError):  # on a full disk the name is missing, the lock holds all the same
            os.truncate(file.fileno(), 0)
            os.write(file.fileno(), _this_process().encode())
        yield


@contextmanager
def _exclusive_file(path: Path) -> Iterator[None]:
    lock = path / LOCK_FILE
    try:
        with lock.open("x") as file:
            file.write(_this_process())
    except FileExistsError:
        raise InUseError(
            f"{path} is in use by {_holder(path)}; wait for it, or remove {lock} if that process is gone"
        ) from None
    try:
        yield
    finally:
        lock.unlink()


def _this_process() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


def _holder(path: Path) -> str:
    """The process in the lock file; it may have taken the lock and not have written its name yet."""
    return (path / LOCK_FILE).read_text() or "another process"
