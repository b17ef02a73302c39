"""One process a run folder."""

import errno
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from attention_residuals import InputError
from attention_residuals.train import locks
from attention_residuals.train.locks import run_lock

HOLD = """
import pathlib, sys
from attention_residuals.train.locks import run_lock
with run_lock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_on_one_folder_are_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with (
            pytest.raises(InputError, match=f"in use by process {other.pid} on {socket.gethostname()}; wait for it"),
            run_lock(tmp_path),
        ):
            pass
        other.send_signal(signal.SIGKILL)
    with run_lock(tmp_path):
        pass


def test_the_lock_ends_with_the_body_however_it_ends(tmp_path: Path) -> None:
    with pytest.raises(KeyError), run_lock(tmp_path):
        raise KeyError
    with run_lock(tmp_path):
        assert (tmp_path / locks.LOCK_FILE).read_text() == f"process {os.getpid()} on {socket.gethostname()}"


@pytest.mark.skipif(locks.fcntl is None, reason="the system has no locks")
def test_a_lock_needs_no_room_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with run_lock(tmp_path), pytest.raises(InputError, match="in use by another process"), run_lock(tmp_path):
        pass


@pytest.mark.skipif(locks.fcntl is None, reason="the system has no locks")
def test_a_disk_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", none)
    with pytest.raises(InputError, match=r"cannot be locked \(No locks available\); use a disk"), run_lock(tmp_path):
        pass


def test_without_locks_of_the_system_the_file_is_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "fcntl", None)
    refusal = pytest.raises(InputError, match=f"process {os.getpid()} .* or remove .*run.lock if")
    with run_lock(tmp_path), refusal, run_lock(tmp_path):
        pass
    with run_lock(tmp_path):
        pass
    assert not (tmp_path / locks.LOCK_FILE).exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="absent is no run folder"), run_lock(tmp_path / "absent"):
        pass
