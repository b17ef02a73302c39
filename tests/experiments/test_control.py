"""Frozen zero queries with the exact scale, against the standard residual, through 200 steps of training."""

import dataclasses
import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from attention_residuals import AttnRes, InputError
from attention_residuals.experiments import control as module
from attention_residuals.experiments.control import (
    LIMIT,
    REFERENCE,
    ControlConfig,
    control,
    frozen_losses,
    largest_difference,
    require_close,
)
from attention_residuals.train import RunFolder, TokenData

CONFIG = ControlConfig(layers=2, sequence_tokens=16)
TEXT = "".join(f"{n * n} is the square of {n}, whose third power is {n**3}\n" for n in range(300)).encode()
DATA = TokenData.from_bytes(TEXT, TEXT[:600], CONFIG.sequence_tokens)


@pytest.fixture(scope="module")
def standard(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    return frozen_losses(CONFIG.run(REFERENCE), DATA, RunFolder(tmp_path_factory.mktemp("standard")))


def test_the_reference_learns(standard: list[float]) -> None:
    assert len(standard) == 200
    assert standard[-1] < standard[0] - 1.5


@pytest.mark.parametrize("name", [name for name in CONFIG.arms if name != REFERENCE])
def test_200_steps_follow_the_standard_residual(name: str, standard: list[float], tmp_path: Path) -> None:
    losses = frozen_losses(CONFIG.run(name), DATA, RunFolder(tmp_path))
    assert 0 < largest_difference(losses, standard)["largest"] <= LIMIT


def test_the_mean_is_not_exact(standard: list[float], tmp_path: Path) -> None:
    """A mean is smaller than a sum, so the eps of the norms weighs more: the control would see less than that."""
    config = CONFIG.run(REFERENCE)
    config = dataclasses.replace(config, model=dataclasses.replace(config.model, residual=AttnRes()), steps=20)
    losses = frozen_losses(config, DATA, RunFolder(tmp_path))
    assert largest_difference(losses, standard[:20])["largest"] > 100 * LIMIT


def test_the_command_writes_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "load_data", lambda text, console: DATA)
    output = StringIO()
    config = dataclasses.replace(CONFIG, steps=3, layers=1, block=2)
    found = control(config, tmp_path / "out", Console(file=output, width=200))
    written = json.loads((tmp_path / "out" / "control.json").read_text())
    assert written["differences"] == found and written["steps"] == 3
    assert set(found) == set(config.arms) - {REFERENCE}
    assert output.getvalue().count("losses at most") == 4
    assert (tmp_path / "out" / "full-in-two-phases" / "metrics.jsonl").read_text().count("\n") == 3


def test_what_is_far_apart_is_refused() -> None:
    with pytest.raises(InputError, match=r"b is 1.0e-03 nats from the standard residual, more than 1e-09"):
        require_close({"a": {"largest": 1e-12, "step": 3}, "b": {"largest": 1e-3, "step": 2}})
