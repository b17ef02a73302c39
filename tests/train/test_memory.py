"""A model that cannot fit is refused before it is built, with both sizes."""

import dataclasses
from pathlib import Path

import pytest

from attention_residuals import InputError, cli
from attention_residuals.recipes import find_recipe
from attention_residuals.train.memory import device_bytes, require_memory


def test_the_whole_kimi_linear_is_refused_on_a_small_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("attention_residuals.train.memory.device_bytes", lambda _: 24 * 2**30)
    assert cli.main(["train", "kimi-linear-48b-a3b", "--out", str(tmp_path / "run")]) == 2
    message = capsys.readouterr().err
    assert "49,122,923,904 parameters, 549 GiB" in message and "cpu has 24 GiB" in message
    assert not (tmp_path / "run").exists()


def test_a_model_that_fits_is_not() -> None:
    model = find_recipe("tiny").model
    require_memory(model, "cpu")
    assert (device_bytes("cpu") or 0) > 2**28
    require_memory(dataclasses.replace(model), "meta")


def test_memory_is_compared_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    model = find_recipe("tiny").model
    from attention_residuals.models import count_parameters

    needed = 12 * count_parameters(model).parameters
    monkeypatch.setattr("attention_residuals.train.memory.device_bytes", lambda _: needed)
    require_memory(model, "cpu")
    monkeypatch.setattr("attention_residuals.train.memory.device_bytes", lambda _: needed - 1)
    with pytest.raises(InputError, match="smaller one"):
        require_memory(model, "cpu")
