"""Depth tensors by themselves, and low-rank matrices beside them."""

import copy
import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from attention_residuals import InputError, Layers, Sublayers
from attention_residuals.retrofit import add_lora, load_depth, retrofit, save_depth, trainable
from attention_residuals.retrofit.fingerprints import fingerprint
from attention_residuals.retrofit.tuning.lora import lora_parameters, target_layers

from .support import build, stir, tokens

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
"""What peft calls in transformers."""

LAYER = Layers(1)


def tuned(name: str = "llama", block: Any = LAYER) -> Any:
    model = build(name)
    retrofit(model, block, gradients=False)
    stir(model)
    return model


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "t5", "mixtral"])
def test_there_and_back_to_the_bit(name: str, tmp_path: Path) -> None:
    model = tuned(name, Sublayers(2))
    save_depth(model, tmp_path)
    saved = load_file(tmp_path / "depth.safetensors")
    assert set(saved) == {key for key, _ in model.named_parameters() if "attention_residuals." in key}
    again = build(name)
    load_depth(again, tmp_path)
    converted = tuned(name, Sublayers(2))
    stir(converted, seed=5)
    load_depth(converted, tmp_path)
    for other in (again, converted):
        assert all(torch.equal(value, model.state_dict()[key]) for key, value in other.state_dict().items())
        assert other.config.attention_residuals == model.config.attention_residuals


def test_fingerprints_tell_weights_apart() -> None:
    model = build("llama")
    plain = fingerprint(model)
    assert fingerprint(build("llama").bfloat16()) == plain, "a narrow type is no other model"
    assert fingerprint(tuned()) == plain
    wrapped = add_lora(tuned(), 2)
    assert fingerprint(wrapped) == plain
    names = [name for name, value in model.named_parameters() if value.numel() < 4096]
    for name in (names[0], names[-1]):
        other = build("llama")
        other.get_parameter(name).data.view(-1)[-1] += 0.5
        assert fingerprint(other) != plain, name
    with torch.no_grad():
        for name, value in wrapped.named_parameters():
            if "lora_B" in name:
                value.fill_(0.1)
    assert fingerprint(wrapped.merge_and_unload()) != plain


def test_refusals_leave_the_model_alone(tmp_path: Path) -> None:
    model = tuned()
    save_depth(model, tmp_path)
    about, tensors = json.loads((tmp_path / "depth.json").read_text()), load_file(tmp_path / "depth.safetensors")
    other = build("llama")
    other.model.layers[1].mlp.up_proj.weight.data.mul_(1.1)
    for target, said in (
        (other, "belongs to other weights"),
        (tuned(block=Sublayers(3)), "load the original"),
        (build("mistral"), "belongs to a LlamaForCausalLM"),
    ):
        before = copy.deepcopy(target.state_dict())
        with pytest.raises(InputError, match=said):
            load_depth(target, tmp_path)
        assert all(torch.equal(value, before[key]) for key, value in target.state_dict().items())
    name = "model.attention_residuals.queries.1"
    for change, said in (
        ({name: None}, f"lacks {name}"),
        ({"model.attention_residuals.queries.99": torch.zeros(32)}, r"has unexpected .*queries\.99"),
        ({name: torch.zeros(31)}, "differs in"),
        ({name: torch.full((32,), torch.nan)}, "NaN"),
    ):
        changed = {key: value for key, value in {**tensors, **change}.items() if value is not None}
        save_file(changed, tmp_path / "depth.safetensors")
        plain = build("llama")
        with pytest.raises(InputError, match=said):
            load_depth(plain, tmp_path)
        assert not hasattr(plain.config, "attention_residuals")
    (tmp_path / "depth.json").write_text(json.dumps({**about, "format": 9}))
    with pytest.raises(InputError, match="format 9"):
        load_depth(build("llama"), tmp_path)
    (tmp_path / "depth.safetensors").write_bytes(b"short")
    with pytest.raises(InputError, match="is damaged"):
        load_depth(build("llama"), tmp_path)
    with pytest.raises(InputError, match="was not converted"):
        save_depth(build("llama"), tmp_path)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "gemma2", "granite", "falcon", "t5"])
def test_low_rank_matrices_are_seen_by_depth(name: str) -> None:
    """A model with its matrices merged is the same function, so none of them was beside the stream."""
    model = tuned(name)
    sample: dict[str, Any] = {"input_ids": tokens()}
    if name == "t5":
        sample["decoder_input_ids"] = tokens(seed=3)
    before = model(**sample).logits
    wrapped = add_lora(model, 2)
    start = wrapped(**sample).logits
    assert (start - before).abs().max() <= 1e-5 * before.abs().max()
    groups = trainable(wrapped, "queries+lora")
    queries = [key for group in groups.values() for key in group if ".queries." in key]
    assert queries and sum(map(len, groups.values())) > len(queries)
    with torch.no_grad():
        for key, value in wrapped.named_parameters():
            if "lora_B" in key:
                value.copy_(0.2 * torch.randn(value.shape, generator=torch.Generator().manual_seed(2)))
    wrapped(**sample).logits.square().mean().backward()
    missing = [key for key, value in wrapped.named_parameters() if value.requires_grad and value.grad is None]
    assert not missing
    found = wrapped(**sample).logits
    merged = wrapped.merge_and_unload()(**sample).logits
    assert (found - before).abs().max() > 1e-2 * before.abs().max()
    assert (found - merged).abs().max() <= 1e-4 * found.abs().max()


def test_targets_and_counts(tmp_path: Path) -> None:
    model = tuned()
    names = target_layers(model)
    assert len(names) == 3 * 7 and not any("lm_head" in name for name in names)
    assert lora_parameters(model, 1, ["o_proj"]) == 3 * 64, "as many as queries of two sublayers a layer"
    whole = lora_parameters(model, 3)
    wrapped = add_lora(model, 3)
    assert whole == sum(value.numel() for name, value in wrapped.named_parameters() if "lora_" in name)
    stir(wrapped.get_base_model(), seed=3)
    save_depth(wrapped, tmp_path / "depth")
    wrapped.save_pretrained(tmp_path / "lora")
    assert not any("queries" in name for name in load_file(tmp_path / "lora/adapter_model.safetensors"))
    again = build("llama")
    load_depth(again, tmp_path / "depth")
    loaded = peft.PeftModel.from_pretrained(again, str(tmp_path / "lora"))
    assert torch.equal(loaded(tokens()).logits, wrapped(tokens()).logits)
    load_depth(loaded, tmp_path / "depth")


def test_what_peft_would_put_between_is_refused() -> None:
    model = tuned()
    copied = peft.get_peft_model(model, peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["input_layernorm"]))
    with pytest.raises(InputError, match="input_layernorm of LlamaDecoderLayer was replaced by ModulesToSaveWrapper"):
        copied(input_ids=tokens())
    model = tuned()
    copied = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["q_proj"], modules_to_save=["attention_residuals"])
    )
    with pytest.raises(InputError, match="attention_residuals of LlamaModel was replaced"):
        copied(input_ids=tokens())
    model = build("whisper")
    retrofit(model, Sublayers(2), gradients=False)
    assert not any(name.endswith("fc2") for name in target_layers(model)), "fc2 writes the stream itself"
    wrapped = peft.get_peft_model(model, peft.LoraConfig(target_modules=["fc2"]))
    with pytest.raises(InputError, match="fc2 of WhisperEncoderLayer was replaced"):
        wrapped.get_base_model()(input_features=torch.zeros(1, 8, 24), decoder_input_ids=tokens(1))
