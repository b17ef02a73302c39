"""Run folders opened again: metrics end with the step that is resumed from."""

import errno
import json
from pathlib import Path

import pytest

from attention_residuals import InputError
from attention_residuals.train import RunFolder, durable


def logged(path: Path, steps: int) -> Path:
    folder = RunFolder.create(path)
    for step in range(1, steps + 1):
        folder.log({"step": step, "loss": 1 / step})
    return path / "metrics.jsonl"


def steps_of(metrics: Path) -> list[int]:
    return [json.loads(line)["step"] for line in metrics.read_text().splitlines()]


@pytest.mark.parametrize("step", [0, 3, 5, 9])
def test_metrics_are_kept_up_to_the_step(tmp_path: Path, step: int) -> None:
    metrics = logged(tmp_path / "run", 5)
    before = metrics.read_bytes()
    folder = RunFolder.reopen(tmp_path / "run", step)
    assert before.startswith(metrics.read_bytes())
    assert steps_of(metrics) == list(range(1, min(step, 5) + 1))
    folder.log({"step": step + 1})
    assert steps_of(metrics)[-1] == step + 1


@pytest.mark.parametrize("cut", [b'{"step": 6, "lo', b'{"step": 6}', b"{", b'{"step": 6, "lo\n', b"\0\0\0\n"])
def test_a_line_cut_short_is_dropped(tmp_path: Path, cut: bytes) -> None:
    metrics = logged(tmp_path / "run", 5)
    before = metrics.read_bytes()
    metrics.write_bytes(before + cut)
    RunFolder.reopen(tmp_path / "run", 100)
    assert metrics.read_bytes() == before


def test_the_final_line_goes_since_the_run_is_not_at_its_end(tmp_path: Path) -> None:
    metrics = logged(tmp_path / "run", 2)
    RunFolder(tmp_path / "run").log({"final": True, "validation_loss": 1.0})
    RunFolder.reopen(tmp_path / "run", 2)
    assert steps_of(metrics) == [1, 2]


def test_lines_that_stay_are_never_written_again(tmp_path: Path) -> None:
    metrics = logged(tmp_path / "run", 5)
    before = metrics.stat().st_ino
    RunFolder.reopen(tmp_path / "run", 2)
    assert steps_of(metrics) == [1, 2] and metrics.stat().st_ino == before
    assert list((tmp_path / "run").iterdir()) == [metrics]


def test_a_file_that_cannot_be_replaced_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.create(tmp_path / "run")
    folder.write_json("config.json", {"steps": 1})

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(durable, "sync_file", full)
    with pytest.raises(InputError, match=r"config\.json cannot be written \(No space left on device\); make room"):
        folder.write_json("config.json", {"steps": 2})
    assert [path.name for path in folder.path.iterdir()] == ["config.json"]
    assert json.loads((folder.path / "config.json").read_text()) == {"steps": 1}


def test_a_folder_without_metrics_is_opened_as_it_is(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run")
    assert RunFolder.reopen(tmp_path / "run", 0) == RunFolder(tmp_path / "run")
    assert not list((tmp_path / "run").iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/run cannot be made \(Not a directory\); choose another folder"):
        RunFolder.create(tmp_path / "file" / "run")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="absent is no run folder; name the folder of an earlier run"):
        RunFolder.reopen(tmp_path / "absent", 3)
