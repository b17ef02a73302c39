"""Files of a checkpoint: damage is seen and named, failed saves leave no trace, kills cost the newest save at most."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from attention_residuals.train import checkpoint_files
from attention_residuals.train.checkpoint_files import damage
from attention_residuals.train.checkpoints import CheckpointError, latest_checkpoint, load_checkpoint
from tests.train.support import adamw, everything, saved, small_model

FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]
REPOSITORY = Path(__file__).parents[2]


def refused(path: Path, message: str) -> None:
    """Loading must fail with the message and change nothing."""
    model = small_model()
    optimizers = adamw(model)
    before = everything(model, optimizers)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(path, model=model, optimizers=optimizers)
    assert all(map(torch.equal, everything(model, optimizers), before))


@pytest.mark.parametrize("name", FILES[:3])
def test_a_file_cut_short_is_named_with_its_sizes(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, 1)
    size = (path / name).stat().st_size
    os.truncate(path / name, size - 1)
    refused(path, f"step-00000001 is damaged: {name} has {size - 1} bytes and was written with {size}; use an earlier")


@pytest.mark.parametrize("name", FILES[:3])
@pytest.mark.parametrize("place", [0, 0.5, 1])
def test_a_single_changed_bit_is_seen(tmp_path: Path, name: str, place: float) -> None:
    path = saved(tmp_path, 1)
    content = bytearray((path / name).read_bytes())
    content[int(place * (len(content) - 1))] ^= 1
    (path / name).write_bytes(content)
    refused(path, f"damaged: {name} has the right size and another checksum")


@pytest.mark.parametrize("name", FILES)
def test_a_lost_file_is_named(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, 1)
    (path / name).unlink()
    refused(path, rf"{name} cannot be read \(No such file or directory\)")


def test_a_manifest_cut_short_or_changed_anywhere_is_seen(tmp_path: Path) -> None:
    path = saved(tmp_path, 1)
    content = (path / "manifest.json").read_bytes()
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1
        (path / "manifest.json").write_bytes(changed)
        assert damage(path), f"a changed byte {place} goes unseen"
    for size in range(len(content) - 1):
        (path / "manifest.json").write_bytes(content[:size])
        assert damage(path), f"a cut to {size} bytes goes unseen"
    (path / "manifest.json").write_bytes(content)
    assert damage(path) is None


def test_a_newer_format_is_told_from_damage(tmp_path: Path) -> None:
    path = saved(tmp_path, 1)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 2}))
    refused(path, "has format 2, this version reads 1; use the version that wrote it")


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "absent", r"absent is no whole checkpoint: manifest.json cannot be read")


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
FAILURES = [
    ("save_file", SafetensorError("I/O error: No space left on device (os error 28)"), 0),
    ("save_file", SafetensorError("I/O error: No space left on device (os error 28)"), 1),
    ("sync_file", FULL, 0),
    ("sync_file", FULL, 3),
    ("sync_folder", FULL, 0),
]


@pytest.mark.parametrize(("function", "error", "calls_before"), FAILURES)
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, error: Exception, calls_before: int
) -> None:
    first = saved(tmp_path, 1)
    real, calls = getattr(checkpoint_files, function), iter(range(calls_before))

    def failing(*arguments: object) -> None:
        if next(calls, None) is None:
            raise error
        real(*arguments)

    monkeypatch.setattr(checkpoint_files, function, failing)
    pattern = r"cannot write step-00000002 in .*No space left .* it needs 0\.\d\d MB and [\d,.]+ MB are free there; "
    with pytest.raises(CheckpointError, match=pattern):
        saved(tmp_path, 2)
    assert list(tmp_path.iterdir()) == [first]
    monkeypatch.undo()
    saved(tmp_path, 2)
    assert latest_checkpoint(tmp_path) == tmp_path / "step-00000002"


def test_an_interrupt_leaves_no_debris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoint_files, "sync_file", interrupted)
    with pytest.raises(KeyboardInterrupt):
        saved(tmp_path, 1)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for one checkpoint."""
    disk = tmp_path / "disk"
    disk.mkdir()
    try:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", disk], capture_output=True)
    except FileNotFoundError:
        pytest.skip("no mount command")
    if mounted.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    yield disk
    subprocess.run(["umount", disk], check=True)


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    folder = small_disk / "checkpoints"
    first = saved(folder, 1)
    with pytest.raises(CheckpointError, match=r"No space left on device.*it needs 0\.\d\d MB and 0\.\d\d MB are free"):
        saved(folder, 2)
    assert list(folder.iterdir()) == [first]
    assert latest_checkpoint(folder) == first


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"cannot write step-00000001 in .*file"):
        saved(tmp_path / "file", 1)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
@pytest.mark.parametrize("kind", [[], ["shared"]], ids=["single", "shared"])
def test_a_kill_costs_the_newest_save_at_most(tmp_path: Path, kind: list[str]) -> None:
    command = [sys.executable, "-m", "tests.train.killed_saves", str(tmp_path), *kind]
    done = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    for way, found in json.loads(done.stdout).items():
        assert found["kills"] >= 10 and found["cut_short"] >= 1, f"kills {way} must hit saves to say anything"
        assert not found["debris"], f"debris is left after kills {way}"
