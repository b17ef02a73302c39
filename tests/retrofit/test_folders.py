"""Converted models on disk, and the command that writes them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from attention_residuals import InputError, ReadScale, Sublayers
from attention_residuals.cli import main
from attention_residuals.retrofit import load_retrofitted, retrofit
from attention_residuals.retrofit.measurement import default_sample

from .support import ARCHITECTURES, build, stir, tokens


def output(model: Any, sample: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        result = model(**sample)
    return result.logits if "logits" in result else result.last_hidden_state


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_saved_and_loaded_to_the_bit(name: str, tmp_path: Path) -> None:
    model = build(name)
    retrofit(model, Sublayers(2), gradients=False)
    stir(model)
    model.save_pretrained(tmp_path)
    loaded = load_retrofitted(tmp_path)
    assert type(loaded) is type(model) and not loaded.training
    saved, found = model.state_dict(), loaded.state_dict()
    assert saved.keys() == found.keys() and all(torch.equal(saved[key], found[key]) for key in saved)
    sample = default_sample(model)
    assert torch.equal(output(loaded, sample), output(model, sample))
    assert loaded.config.attention_residuals == model.config.attention_residuals


def test_shards_types_and_another_round(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path / "plain")
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "plain", dtype=torch.bfloat16)
    retrofit(model, Sublayers(3), gradients=False)
    stir(model)
    model.save_pretrained(tmp_path / "one", max_shard_size="20KB")
    assert len(list((tmp_path / "one").glob("*.safetensors"))) > 1
    loaded = load_retrofitted(tmp_path / "one")
    assert torch.equal(loaded(tokens()).logits, model(tokens()).logits)
    assert loaded.model.attention_residuals.queries["1"].dtype == torch.float32
    loaded.save_pretrained(tmp_path / "two")
    again = load_retrofitted(tmp_path / "two", dtype=torch.float32)
    assert again.model.embed_tokens.weight.dtype == torch.float32
    assert torch.equal(again.model.attention_residuals.queries["1"], model.model.attention_residuals.queries["1"])


def test_without_this_package_it_is_the_original(tmp_path: Path) -> None:
    original = build("llama")
    expected = original(tokens()).logits
    retrofit(original, Sublayers(2), gradients=False)
    stir(original)
    original.save_pretrained(tmp_path)
    plain: Any = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(plain(tokens()).logits, expected)
    with pytest.raises(InputError, match="load_retrofitted"):
        retrofit(plain, Sublayers(2))


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "source", tmp_path / "out"
    model = build("llama")
    model.save_pretrained(source)
    (source / "tokenizer.json").write_text("{}")
    assert main(["retrofit", str(source), str(out), "--block", "layers:2"]) == 0
    printed = capsys.readouterr().out
    assert "in 2 blocks of 4, the last of 2" in printed and f"Model: {out}" in printed
    assert (out / "tokenizer.json").read_text() == "{}"
    loaded = load_retrofitted(out)
    assert (loaded(tokens()).logits - model(tokens()).logits).abs().max() <= 1e-5 * loaded(tokens()).logits.abs().max()
    assert loaded.config.attention_residuals["block"] == {"type": "Layers", "count": 2, "sublayers_per_layer": 2}
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("source", "out")] == []
    for words, said in (
        ([str(source), str(out)], "exists"),
        ([str(source), str(tmp_path / "b"), "--block", "4"], "with its unit"),
        ([str(out), str(tmp_path / "b")], "load_retrofitted"),
        ([str(tmp_path), str(tmp_path / "b")], "no config.json"),
        ([str(source), str(tmp_path / "b"), "--scale", "mean", "--tolerance", "0"], "tolerance"),
    ):
        assert main(["retrofit", *words]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_folders_that_are_not_whole(tmp_path: Path) -> None:
    model = build("llama")
    model.save_pretrained(tmp_path / "plain")
    with pytest.raises(InputError, match="was not converted"):
        load_retrofitted(tmp_path / "plain")
    retrofit(model, Sublayers(2), scale=ReadScale.SUM, gradients=False)
    model.save_pretrained(tmp_path / "good")
    entry = json.loads((tmp_path / "good/config.json").read_text())
    for change, said in (
        ({"version": 2}, "version 2"),
        ({"block": 4}, "attention_residuals.block"),
        ({"stacks": []}, "with the stacks"),
    ):
        changed = {**entry, "attention_residuals": {**entry["attention_residuals"], **change}}
        (tmp_path / "good/config.json").write_text(json.dumps(changed))
        with pytest.raises(InputError, match=said):
            load_retrofitted(tmp_path / "good")
    lacking = tmp_path / "plain/config.json"
    lacking.write_text(json.dumps(entry))
    with pytest.raises(InputError, match=r"lacks model\.attention_residuals"):
        load_retrofitted(tmp_path / "plain")
