"""Checkpoints: a resumed run is the uninterrupted one to the last bit; the latest is found, old ones go."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.optim import Optimizer

from attention_residuals import Decoder, InputError
from attention_residuals.train import AdamW
from attention_residuals.train.checkpoints import (
    CheckpointError,
    latest_checkpoint,
    load_checkpoint,
    prune,
    save_checkpoint,
)
from tests.train.support import adamw, everything, muon, saved, small_model, train

Build = Callable[[Decoder], dict[str, Optimizer]]


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())


def break_checkpoint(path: Path) -> None:
    (path / "optimizer.safetensors").write_bytes(b"")


def refuse_reports(message: str) -> None:
    raise AssertionError(message)


@pytest.mark.parametrize("build", [adamw, muon])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_last_bit(tmp_path: Path, build: Build) -> None:
    model = small_model()
    optimizers = build(model)
    train(model, optimizers, range(5))
    path = save_checkpoint(tmp_path, step=5, model=model, optimizers=optimizers, facts={})
    losses = train(model, optimizers, range(5, 10))

    resumed = small_model()
    resumed_optimizers = build(resumed)
    train(resumed, resumed_optimizers, range(20, 22))  # what was there before must not shine through
    load_checkpoint(path, model=resumed, optimizers=resumed_optimizers)
    assert train(resumed, resumed_optimizers, range(5, 10)) == losses
    pairs = zip(everything(resumed, resumed_optimizers), everything(model, optimizers), strict=True)
    assert all(mine.dtype == theirs.dtype and torch.equal(mine, theirs) for mine, theirs in pairs)


def test_moments_in_bfloat16_come_back_as_they_were(tmp_path: Path) -> None:
    model = small_model(dtype=torch.bfloat16)
    optimizers = muon(model)
    train(model, optimizers, range(3))
    path = save_checkpoint(tmp_path, step=3, model=model, optimizers=optimizers, facts={})
    resumed = small_model(dtype=torch.bfloat16)
    resumed_optimizers = muon(resumed)
    load_checkpoint(path, model=resumed, optimizers=resumed_optimizers)
    pairs = zip(everything(resumed, resumed_optimizers), everything(model, optimizers), strict=True)
    assert all(mine.dtype == theirs.dtype and torch.equal(mine, theirs) for mine, theirs in pairs)


def test_loading_where_nothing_was_stepped_clears_the_state(tmp_path: Path) -> None:
    model = small_model()
    optimizers = adamw(model)
    path = save_checkpoint(tmp_path, step=0, model=model, optimizers=optimizers, facts={})
    before = everything(model, optimizers)
    losses = train(model, optimizers, range(3))
    load_checkpoint(path, model=model, optimizers=optimizers)
    assert all(map(torch.equal, everything(model, optimizers), before))
    assert train(model, optimizers, range(3)) == losses


@pytest.mark.gpu
def test_a_checkpoint_moves_between_devices(tmp_path: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model = small_model(device="cuda")
    optimizers = muon(model)
    train(model, optimizers, range(3))
    path = save_checkpoint(tmp_path, step=3, model=model, optimizers=optimizers, facts={})
    for device in ("cuda", "cpu"):
        resumed = small_model(device=device)
        resumed_optimizers = muon(resumed)
        load_checkpoint(path, model=resumed, optimizers=resumed_optimizers)
        pairs = zip(everything(resumed, resumed_optimizers), everything(model, optimizers), strict=True)
        assert all(mine.device.type == device and torch.equal(mine.cpu(), theirs.cpu()) for mine, theirs in pairs)
        train(resumed, resumed_optimizers, range(3, 5))


def test_facts_come_back_with_the_step(tmp_path: Path) -> None:
    model = small_model()
    facts = {"optimizer": AdamW(), "fingerprint": "0123", "best_loss": math.inf, "offset": 17}
    path = save_checkpoint(tmp_path, step=12, model=model, optimizers={}, facts=facts)
    found = load_checkpoint(path, model=model, optimizers={})
    assert found.pop("optimizer")["betas"] == [0.9, 0.95]
    assert found == {"fingerprint": "0123", "best_loss": math.inf, "offset": 17, "step": 12}


def test_the_files_are_what_the_manifest_says(tmp_path: Path) -> None:
    path = saved(tmp_path / "deep" / "down", 1234)
    assert path.name == "step-00001234"
    manifest = json.loads((path / "manifest.json").read_text())
    sizes = {file.name: file.stat().st_size for file in path.iterdir() if file.name != "manifest.json"}
    assert {name: entry["bytes"] for name, entry in manifest["files"].items()} == sizes
    assert sizes.keys() == {"model.safetensors", "optimizer.safetensors", "state.json"}


def test_the_latest_is_by_step_and_not_by_name_or_time(tmp_path: Path) -> None:
    for step in (9, 100_000_000):
        saved(tmp_path, step)
    (tmp_path / "step-9999999999x").mkdir()
    (tmp_path / ".tmp-step-99999999").mkdir()
    assert latest_checkpoint(tmp_path, refuse_reports) == tmp_path / "step-100000000"
    assert latest_checkpoint(tmp_path / "absent") is None


def test_a_damaged_latest_is_reported_and_the_one_before_it_taken(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        saved(tmp_path, step)
    break_checkpoint(tmp_path / "step-00000003")
    messages: list[str] = []
    assert latest_checkpoint(tmp_path, messages.append) == tmp_path / "step-00000002"
    assert len(messages) == 1 and "step-00000003 is damaged: optimizer.safetensors has 0 bytes" in messages[0]
    with pytest.warns(UserWarning, match="step-00000003 is damaged"):
        latest_checkpoint(tmp_path)


def test_the_last_and_the_best_are_kept(tmp_path: Path) -> None:
    for step in range(1, 7):
        saved(tmp_path, step)
    prune(tmp_path, keep_last=2, best=3)
    assert steps_in(tmp_path) == [3, 5, 6]
    prune(tmp_path, keep_last=1, best=6)
    assert steps_in(tmp_path) == [6]
    prune(tmp_path, keep_last=5)
    assert steps_in(tmp_path) == [6]


def test_a_damaged_checkpoint_neither_counts_nor_goes(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        saved(tmp_path, step)
    break_checkpoint(tmp_path / "step-00000004")
    prune(tmp_path, keep_last=2)
    assert steps_in(tmp_path) == [2, 3, 4]


def test_saving_the_same_state_again_changes_nothing(tmp_path: Path) -> None:
    state = (saved(tmp_path, 1) / "state.json").stat()
    saved(tmp_path, 1)
    assert (tmp_path / "step-00000001" / "state.json").stat() == state
    assert steps_in(tmp_path) == [1]


def test_another_state_of_the_same_step_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    with pytest.raises(CheckpointError, match="step-00000001 holds another state of the same step"):
        save_checkpoint(tmp_path, step=1, model=small_model(), optimizers={}, facts={})
    assert latest_checkpoint(tmp_path, refuse_reports) is not None and steps_in(tmp_path) == [1]


def test_a_save_before_a_later_checkpoint_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 7)
    with pytest.raises(CheckpointError, match="has step-00000007, later than step 3 that is to be saved"):
        saved(tmp_path, 3)


def test_after_damage_the_run_goes_on_and_replaces_what_was_damaged(tmp_path: Path) -> None:
    for step in (1, 2):
        saved(tmp_path, step)
    break_checkpoint(tmp_path / "step-00000002")
    saved(tmp_path, 2)
    assert latest_checkpoint(tmp_path, refuse_reports) == tmp_path / "step-00000002"


def test_every_error_is_one_the_command_line_can_print() -> None:
    assert issubclass(CheckpointError, InputError)
