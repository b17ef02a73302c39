"""A run that was stopped and resumed is the uninterrupted one, to the last bit; what does not fit is refused."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from attention_residuals import AttnRes, DecoderConfig, InputError, Query, Residual, Sublayers
from attention_residuals.configs import to_plain
from attention_residuals.streams import RmsBlockAttnRes
from attention_residuals.train import (
    MATRICES_AND_QUERIES,
    Muon,
    Recompute,
    TokenData,
    TrainConfig,
    Training,
    TrainingStoppedError,
    load_trained,
    read_config,
    resume_training,
    start_training,
    training_steps,
)
from attention_residuals.train.resume import require_same_model

TEXT = b"the quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 40
DATA = TokenData.from_bytes(TEXT, TEXT[:1000], 32)
CONFIG = TrainConfig(
    model=DecoderConfig.from_depth(2, residual=AttnRes(Sublayers(2))),
    steps=9,
    evaluate_every_steps=4,
    checkpoint_every_steps=3,
    probe_every_steps=2,
)


def refuse(message: str) -> None:
    raise AssertionError(message)


def lines(path: Path, name: str) -> list[dict[str, Any]]:
    """The file's records without what a clock says."""
    records = [json.loads(line) for line in (path / name).read_text().splitlines()]
    return [{key: value for key, value in record.items() if key != "seconds"} for record in records]


def run(training: Training, steps: int = 100) -> Training:
    for _, _ in zip(range(steps), training_steps(training), strict=False):
        pass
    return training


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer": Muon()},
        {"optimizer": Muon(roles=MATRICES_AND_QUERIES)},
        {"accumulate_parts": 2},
        {"recompute": Recompute.FULL},
    ],
    ids=["adamw", "muon", "queries under muon", "accumulated", "recomputed"],
)
@pytest.mark.parametrize("steps", [1, 3, 4, 8])
def test_resumed_is_uninterrupted(tmp_path: Path, steps: int, changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    whole = run(start_training(config, DATA, tmp_path / "whole", about={}))
    run(start_training(config, DATA, tmp_path / "cut", about={}), steps)
    path = tmp_path / "cut"
    resumed = resume_training(path, read_config(path), DATA, refuse)
    assert resumed.progress.step == steps - steps % 3
    run(resumed)
    for name in ("metrics.jsonl", "probes.jsonl"):
        assert lines(path, name) == lines(tmp_path / "whole", name)
    assert all(map(torch.equal, resumed.model.state_dict().values(), whole.model.state_dict().values()))
    assert resumed.progress.best_step == whole.progress.best_step


@pytest.mark.parametrize(
    "residual",
    [AttnRes(Sublayers(2), query=Query.PROJECTED, heads=2), AttnRes(query=Query.NONE), RmsBlockAttnRes(Sublayers(2))],
)
def test_resumed_is_uninterrupted_with_variants(tmp_path: Path, residual: Residual) -> None:
    test_resumed_is_uninterrupted(tmp_path, 4, {"model": dataclasses.replace(CONFIG.model, residual=residual)})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning", "ignore:.*is deprecated:DeprecationWarning")
def test_resumed_is_uninterrupted_when_compiled(tmp_path: Path) -> None:
    test_resumed_is_uninterrupted(tmp_path, 4, {"compile_sublayers": True})


LATER_FIELDS = ("query", "weighting", "key_norm", "window_sublayers", "heads", "normed_sources", "logit_scale")


def test_a_run_of_before_the_variants_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its config nor its checkpoints know the fields that `AttnRes` has got since."""

    def as_then(value: Any) -> Any:
        plain = to_plain(value)
        for name in LATER_FIELDS:
            del plain["config"]["model"]["residual"][name]
        return plain

    path, whole = tmp_path / "run", run(start_training(CONFIG, DATA, tmp_path / "whole", about={}))
    with monkeypatch.context() as patch:
        patch.setattr("attention_residuals.train.checkpoints.to_plain", as_then)
        run(start_training(CONFIG, DATA, path, about={}), 4)
    (path / "config.json").write_text(json.dumps(as_then(json.loads((path / "config.json").read_text()))))
    assert read_config(path) == CONFIG
    assert load_trained(path).step == 3
    resumed = run(resume_training(path, read_config(path), DATA, refuse))
    assert all(map(torch.equal, resumed.model.state_dict().values(), whole.model.state_dict().values()))


def test_a_checkpoint_of_an_unknown_model_is_refused(tmp_path: Path) -> None:
    facts = {"config": {"model": {**to_plain(CONFIG.model), "depth": 3}}}
    with pytest.raises(InputError, match=r"step-1 has no model of this version: model\.depth is unknown"):
        require_same_model(tmp_path / "step-1", facts, CONFIG)


def test_a_run_knows_its_config_again(tmp_path: Path) -> None:
    start_training(CONFIG, DATA, tmp_path / "run", about={"data": DATA.about})
    assert read_config(tmp_path / "run") == CONFIG


def test_the_last_checkpoints_and_the_best_are_kept(tmp_path: Path) -> None:
    config = dataclasses.replace(CONFIG, steps=12, checkpoint_every_steps=1, keep_checkpoints=2)
    training = start_training(config, DATA, tmp_path / "run", about={})
    run(training)
    kept = {int(path.name.removeprefix("step-")) for path in training.checkpoints.iterdir()}
    losses = {line["step"]: line["validation_loss"] for line in lines(tmp_path / "run", "metrics.jsonl")}
    assert kept == {11, 12, min(losses, key=lambda step: losses[step])}


def test_the_last_good_checkpoint_outlives_a_run_that_broke(tmp_path: Path) -> None:
    training = start_training(CONFIG, DATA, tmp_path / "run", about={})
    steps = training_steps(training)
    for _ in range(4):
        next(steps)
    with torch.no_grad():
        training.model.sublayers["1"].get_parameter("up.weight").fill_(float("inf"))
    with pytest.raises(TrainingStoppedError, match=r"at step 5, beginning with sublayers\.1\.up\.weight"):
        next(steps)
    resumed = run(resume_training(tmp_path / "run", CONFIG, DATA, refuse))
    assert resumed.progress.step == 9


def test_another_text_is_refused(tmp_path: Path) -> None:
    run(start_training(CONFIG, DATA, tmp_path / "run", about={}), 3)
    other = TokenData.from_bytes(TEXT + b"and more", TEXT[:1000], 32)
    with pytest.raises(InputError, match="was trained on another text"):
        resume_training(tmp_path / "run", CONFIG, other, refuse)


def test_another_text_is_refused_before_the_first_checkpoint(tmp_path: Path) -> None:
    about = {"data": {"fingerprint": DATA.fingerprint, "tokenizer": {"fingerprint": "another"}}}
    run(start_training(CONFIG, DATA, tmp_path / "run", about=about), 2)
    with pytest.raises(InputError, match=r"run was trained on another tokenizer \(fingerprint another, here bytes\)"):
        resume_training(tmp_path / "run", CONFIG, DATA, refuse)


def test_a_damaged_checkpoint_is_passed_over_and_told(tmp_path: Path) -> None:
    training = run(start_training(CONFIG, DATA, tmp_path / "run", about={}), 7)
    os.truncate(training.checkpoints / "step-00000006" / "model.safetensors", 100)
    told: list[str] = []
    assert resume_training(tmp_path / "run", CONFIG, DATA, told.append).progress.step == 3
    assert len(told) == 1 and "step-00000006 is damaged: model.safetensors has 100 bytes" in told[0]


def test_nothing_is_dropped_when_no_checkpoint_is_whole(tmp_path: Path) -> None:
    training = run(start_training(CONFIG, DATA, tmp_path / "run", about={}), 7)
    for path in training.checkpoints.iterdir():
        os.truncate(path / "model.safetensors", 100)
    with pytest.raises(
        InputError, match=r"none of 2 checkpoints in .* is whole \(.*00000006 .* with \d+\); restore one"
    ):
        resume_training(tmp_path / "run", CONFIG, DATA, refuse)
    assert len(lines(tmp_path / "run", "metrics.jsonl")) == 7


def test_another_model_is_refused_by_name(tmp_path: Path) -> None:
    run(start_training(CONFIG, DATA, tmp_path / "run", about={}), 3)
    wider = dataclasses.replace(CONFIG, model=dataclasses.replace(CONFIG.model, mlp_width=64))
    with pytest.raises(InputError, match=r"saved with model\.mlp_width = 48, and the run's config\.json says 64"):
        resume_training(tmp_path / "run", wider, DATA, refuse)


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config\.json"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot be read"),
        ("\udcff", "cannot be read"),
        ("[]", "holds no config"),
        ("{}", "holds no config"),
        ('{"config": {"stepz": 3}}', "is no config of this version: stepz is unknown"),
        ('{"config": {"steps": "six"}}', "is no config of this version: steps is 'six', which is no int"),
    ],
)
def test_a_config_that_is_none_is_named(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=rf"config\.json {message}"):
        read_config(tmp_path)
