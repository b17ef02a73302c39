"""A disk that fills up under the command: one sentence, the last checkpoint whole, and resumption to the last bit.

A limit on the size of files stands for the disk: a write beyond it fails half-way, as on a full one, without root.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from attention_residuals import cli
from attention_residuals.commands import train as command
from attention_residuals.train import loop
from attention_residuals.train.checkpoint_files import damage
from attention_residuals.train.text import folders

resource = pytest.importorskip("resource", reason="the system has no limits on file sizes")

RUN = [
    "tiny",
    "steps=9",
    "checkpoint_every_steps=3",
    "evaluation_tokens=256",
    "final_evaluation_tokens=512",
    "probe_every_steps=5",
    "text.sequence_tokens=32",
]


@contextmanager
def files_at_most(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def train(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    status = cli.main(["train", *arguments])
    return status, capsys.readouterr().err


def content(run: Path) -> list[Any]:
    """Metrics, probes, validation and final weights, without what a clock says."""
    text = (run / "metrics.jsonl").read_text() + (run / "probes.jsonl").read_text()
    lines = map(json.loads, text.splitlines())
    records = [{key: value for key, value in line.items() if key != "seconds"} for line in lines]
    weights = load_file(run / "checkpoints" / "step-00000009" / "model.safetensors")
    return [records, (run / "validation.json").read_text(), {name: value.tobytes() for name, value in weights.items()}]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    run = tmp_path_factory.mktemp("whole") / "run"
    assert cli.main(["train", *RUN, "--out", str(run)]) == 0
    return content(run)


# Each limit lets what comes before pass and cuts this in the middle: a fourth line, a first probe, a second checkpoint.
LIMITS = {"metrics.jsonl": 550, "probes.jsonl": 1000, "step-00000006": 100_000}


@pytest.mark.parametrize("failing", LIMITS)
def test_a_run_goes_on_when_there_is_room_again(
    failing: str, whole: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, real = tmp_path / "run", loop.save_training

    def save_and_fill_the_disk(*arguments: Any) -> None:
        real(*arguments)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LIMITS[failing], resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    with files_at_most(10**9), monkeypatch.context() as patch:
        patch.setattr(loop, "save_training", save_and_fill_the_disk)
        status, error = train(*RUN, "--out", str(run), capsys=capsys)
    assert status == 2 and error.count("\n") == 1
    assert failing in error and "File too large" in error and "make room or mend this" in error
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000003"]
    assert damage(run / "checkpoints" / "step-00000003") is None
    assert train("--resume", str(run), capsys=capsys) == (0, "")
    assert content(run) == whole


def test_a_run_whose_last_files_did_not_fit_is_not_finished(
    whole: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, real = tmp_path / "run", loop.RunFolder.write_json

    def full(folder: loop.RunFolder, name: str, content: Any) -> None:
        with files_at_most(10 if name == "validation.json" else 10**9):
            real(folder, name, content)

    with monkeypatch.context() as patch:
        patch.setattr(loop.RunFolder, "write_json", full)
        status, error = train(*RUN, "--out", str(run), capsys=capsys)
    assert status == 2 and "validation.json cannot be written (File too large)" in error
    assert train("--resume", str(run), capsys=capsys) == (0, "")
    assert content(run) == whole


def test_a_run_that_could_not_begin_leaves_its_name_free(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert train(*RUN, "--out", str(tmp_path / "before"), capsys=capsys)[0] == 0  # the text is in the cache
    with files_at_most(100):
        status, error = train(*RUN, "--out", str(run), capsys=capsys)
    assert status == 2 and f"{run}/config.json cannot be written (File too large)" in error
    assert not run.exists()


@pytest.mark.parametrize("size", [0, 1000, 100_000])
def test_a_cache_without_room_leaves_nothing(
    size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(folders.CACHE_VARIABLE, str(tmp_path / "cache"))
    with files_at_most(size):
        status, error = train(*RUN, "--out", str(tmp_path / "run"), capsys=capsys)
    assert status == 2 and error.count("\n") == 1
    assert f"the cache {tmp_path}/cache/tokens cannot be written (File too large); make room there, or set" in error
    assert not list((tmp_path / "cache" / "tokens").iterdir()) and not (tmp_path / "run").exists()


def test_output_without_room_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "train", full)
    status, error = train(*RUN, "--out", str(tmp_path / "run"), capsys=capsys)
    assert (
        status == 2
        and error == "attnres: the output cannot be used (No space left on device); make room or mend this\n"
    )
