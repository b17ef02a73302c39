"""A run's weights, tokenizer and config for use: the same model again, and one sentence for what cannot be used."""

import dataclasses
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from attention_residuals import AttnRes, DecoderConfig, InputError, Sublayers
from attention_residuals.train import (
    ByteTokenizer,
    CheckpointError,
    JsonTokenizer,
    TokenData,
    TrainConfig,
    Training,
    load_trained,
    resume_training,
    start_training,
    training_steps,
)
from attention_residuals.train import checkpoint_files as files
from attention_residuals.train.manifests import write_manifest
from tests.train.text.test_tokenizer import trained as trained_backend

TEXT = b"the quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 40
DATA = TokenData.from_bytes(TEXT, TEXT[:1000], 16)
CONFIG = TrainConfig(
    model=DecoderConfig.from_depth(2, vocab_size=300, residual=AttnRes(Sublayers(2))), steps=4, checkpoint_every_steps=1
)


def run(path: Path, config: TrainConfig = CONFIG, data: TokenData = DATA) -> Training:
    training = start_training(config, data, path, about={})
    list(training_steps(training))
    return training


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return run(tmp_path / "run").folder.path


def changed(path: Path, step: int, change: dict[str, torch.Tensor]) -> Path:
    """The checkpoint of `step` with other tensors, under a manifest that says so."""
    checkpoint = path / "checkpoints" / f"step-{step:08d}"
    save_file({**load_file(checkpoint / files.WEIGHTS), **change}, checkpoint / files.WEIGHTS)
    write_manifest(checkpoint, (files.WEIGHTS, files.OPTIMIZER, files.STATE))
    return checkpoint


def json_data() -> TokenData:
    return dataclasses.replace(DATA, tokenizer=JsonTokenizer("bpe:300", trained_backend().to_str()))


def test_the_model_comes_back_as_it_was(tmp_path: Path) -> None:
    training = run(tmp_path / "run")
    found = load_trained(tmp_path / "run")
    assert found.step == 4 and found.config == CONFIG and isinstance(found.tokenizer, ByteTokenizer)
    assert not found.model.training and all(value.requires_grad for value in found.model.parameters())
    tokens = DATA.batch(0, 0, 2)
    assert torch.equal(found.model(tokens), training.model(tokens))


def test_an_earlier_step_can_be_asked_for(path: Path) -> None:
    assert load_trained(path, step=3).step == 3
    with pytest.raises(InputError, match=r"run has no checkpoint of step 9; there are 3, 4"):
        load_trained(path, step=9)


def test_a_run_without_checkpoints_says_what_writes_them(tmp_path: Path) -> None:
    run(tmp_path / "run", dataclasses.replace(CONFIG, checkpoint_every_steps=0))
    with pytest.raises(InputError, match=r"has no checkpoint.* train with checkpoint_every_steps=N"):
        load_trained(tmp_path / "run")


def test_damage_is_passed_over_or_refused(path: Path) -> None:
    os.truncate(path / "checkpoints" / "step-00000004" / files.WEIGHTS, 100)
    with pytest.warns(UserWarning, match=r"step-00000004 is damaged: .*; step-00000003 is used"):
        assert load_trained(path).step == 3
    with pytest.raises(CheckpointError, match="step-00000004 is damaged"):
        load_trained(path, step=4)
    os.truncate(path / "checkpoints" / "step-00000003" / files.WEIGHTS, 100)
    with pytest.raises(CheckpointError, match=r"none of 2 checkpoints in .* is whole"):
        load_trained(path)


def test_weights_that_are_no_numbers_are_named(path: Path) -> None:
    changed(path, 4, {"norm.weight": torch.full((16,), torch.nan)})
    with pytest.raises(InputError, match=r"has NaN or infinite values in norm\.weight; use weights from before"):
        load_trained(path)


def test_another_shape_is_named(path: Path) -> None:
    changed(path, 4, {"norm.weight": torch.ones(15)})
    with pytest.raises(InputError, match=r"differs in norm\.weight \(float32 \[15\], in the model float32 \[16\]\)"):
        load_trained(path)


def test_a_tokenizer_stays_with_its_run(tmp_path: Path) -> None:
    data = json_data()
    run(tmp_path / "run", data=data)
    tokenizer = load_trained(tmp_path / "run").tokenizer
    assert tokenizer.fingerprint == data.tokenizer.fingerprint
    assert tokenizer.decode(tokenizer.encode_batch([TEXT])[0].tolist()).encode() == TEXT


def test_a_lost_or_changed_tokenizer_is_told_and_resuming_brings_it_back(tmp_path: Path) -> None:
    data, path = json_data(), tmp_path / "run"
    run(path, data=data)
    (path / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"tokenizer\.json cannot be read .*; copy the tokenizers JSON of"):
        load_trained(path)
    (path / "tokenizer.json").write_text(trained_backend("</s>").to_str())
    with pytest.raises(InputError, match="is another tokenizer than the run was trained with"):
        load_trained(path)
    (path / "tokenizer.json").unlink()
    resume_training(path, CONFIG, data, print)
    assert load_trained(path).tokenizer.fingerprint == data.tokenizer.fingerprint


def test_a_run_that_cannot_start_leaves_its_name_free(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        start_training(CONFIG, json_data(), tmp_path / "run", about={"what": object()})
    assert not (tmp_path / "run").exists()


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no run folder: it has no config\.json"):
        load_trained(tmp_path)
    with pytest.raises(InputError, match="device toaster cannot be used here"):
        load_trained(tmp_path, device="toaster")
