"""A run becomes a folder that transformers loads, or one sentence says why not."""

import dataclasses
import errno
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer

from attention_residuals import InputError, cli
from attention_residuals.hf import AttnResForCausalLM
from attention_residuals.hf import export as module
from attention_residuals.hf.export import export
from attention_residuals.inference import generate
from attention_residuals.train import JsonTokenizer, TokenData, TrainConfig, load_trained, start_training
from attention_residuals.train import training_steps as steps_of
from attention_residuals.train.text import TextConfig
from tests.hf.support import decoder_config
from tests.train.text.test_tokenizer import trained as trained_backend

TEXT = b"the quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 40


def trained_run(path: Path, tokenizer: JsonTokenizer | None = None, every: int = 1) -> Path:
    model = decoder_config(vocab_size=300)
    config = TrainConfig(model, steps=3, checkpoint_every_steps=every, text=TextConfig(sequence_tokens=32))
    data = TokenData.from_bytes(TEXT, TEXT[:1000], 32)
    if tokenizer is not None:
        data = dataclasses.replace(data, tokenizer=tokenizer)
    list(steps_of(start_training(config, data, path, about={})))
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture(scope="module")
def exported(run: Path) -> Path:
    export(run, run.parent / "exported")
    return run.parent / "exported"


def test_an_exported_run_writes_the_same_text(run: Path, exported: Path) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(exported)
    tokenizer = AutoTokenizer.from_pretrained(exported)
    ours = load_trained(run)
    inputs = tokenizer("the lazy", return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(model(**inputs).logits, ours.model(inputs["input_ids"]))
    assert model.config.max_position_embeddings == tokenizer.model_max_length == 32
    assert model.generation_config.eos_token_id == model.generation_config.pad_token_id == 0
    found = model.generate(**inputs, max_new_tokens=6, do_sample=False)[0, 8:].tolist()
    expected = generate(ours.model, [inputs["input_ids"][0]], tokens=6, stop_token=0)[0].tolist()
    assert found[: len(expected)] == expected


def test_the_folder_holds_what_its_manifest_says(exported: Path) -> None:
    listed = set(json.loads((exported / "manifest.json").read_text())["files"])
    assert listed == {path.name for path in exported.iterdir()} - {"manifest.json"}
    assert listed == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "modeling_attn_res.py",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    content = bytearray((exported / "model.safetensors").read_bytes())
    copy = exported.parent / "tampered"
    copy.mkdir()
    for path in exported.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    content[-1] ^= 64
    (copy / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"tampered is damaged: model\.safetensors has the right size and another"):
        AutoModelForCausalLM.from_pretrained(copy)


def test_a_trained_tokenizer_comes_along(tmp_path: Path) -> None:
    tokenizer = JsonTokenizer("bpe:300", trained_backend().to_str())
    export(trained_run(tmp_path / "run", tokenizer), tmp_path / "out")
    found = AutoTokenizer.from_pretrained(tmp_path / "out")
    text = "A text with spaces"
    assert found(text)["input_ids"] == tokenizer.encode_batch([text.encode()])[0].tolist()
    config = AutoModelForCausalLM.from_pretrained(tmp_path / "out").config
    assert config.eos_token_id == config.pad_token_id == tokenizer.separator


def test_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "out"
    assert cli.main(["export", str(run), str(out), "--checkpoint", "2"]) == 0
    assert f"Exported the weights after step 2: {out}" in capsys.readouterr().out
    expected = load_trained(run, step=2).model.state_dict()
    found = AutoModelForCausalLM.from_pretrained(out).model.state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    capsys.readouterr()  # transformers reports its progress
    for arguments, message in (
        ([str(run), str(out)], "exists; name another folder, or remove it first"),
        ([str(run), str(tmp_path / "new"), "--checkpoint", "9"], "has no checkpoint of step 9; there are 2, 3"),
        ([str(tmp_path), str(tmp_path / "new")], "is no run folder"),
    ):
        assert cli.main(["export", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_a_run_without_checkpoints_says_what_writes_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="train with checkpoint_every_steps=N"):
        export(trained_run(tmp_path / "run", every=0), tmp_path / "out")


def test_without_transformers_the_command_names_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert cli.main(["export", str(tmp_path), str(tmp_path / "out")]) == 2
    assert "pip install 'attention-residuals[hf]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "name", "error"),
    [
        (module, "write_manifest", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
        (module, "sync_file", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
        (AttnResForCausalLM, "save_pretrained", SafetensorError("I/O error: No space left on device (os error 28)")),
    ],
)
def test_a_full_disk_leaves_nothing(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, error: Exception
) -> None:
    def full(*_: object) -> None:
        raise error

    monkeypatch.setattr(place, name, full)
    with pytest.raises(InputError, match=r"out cannot be written \(.*No space left on device.*\); make room there"):
        export(run, tmp_path / "out")
    assert not list(tmp_path.iterdir())


REMOTE = """
import sys
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
assert "attention_residuals" not in sys.modules
for kind in (AutoConfig, AutoModel, AutoModelForCausalLM):
    found = kind.from_pretrained(sys.argv[1], trust_remote_code=True)
assert found(found.dummy_inputs["input_ids"] % 256).logits.shape[-1] == 300
found.save_pretrained(sys.argv[2])
again = AutoModelForCausalLM.from_pretrained(sys.argv[2], trust_remote_code=True)
print(type(again).__module__)
"""


@pytest.mark.slow
def test_tools_that_do_not_know_this_package_find_it(exported: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", REMOTE, str(exported), str(tmp_path / "again")]
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "attention_residuals.hf.modeling"
