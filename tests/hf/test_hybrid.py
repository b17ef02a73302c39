"""Decoders whose layers differ behind the interfaces of transformers: Kimi Linear in small, recurrent layers alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, StaticCache

from attention_residuals import AttnRes, Decoder, InputError, Sublayers, cli
from attention_residuals.hf import AttnResForCausalLM, AttnResHybridConfig, AttnResHybridForCausalLM, wrap_decoder
from attention_residuals.hf.export import export
from attention_residuals.hf.exported import load_exported
from attention_residuals.inference import generate
from attention_residuals.models import (
    Experts,
    Gated,
    GroupedQuery,
    HybridConfig,
    KimiDelta,
    Latent,
    StateSpace,
    TokenMixerConfig,
    build_decoder,
)
from attention_residuals.train import TokenData, TrainConfig, load_trained, start_training
from attention_residuals.train import training_steps as steps_of
from attention_residuals.train.text import TextConfig
from tests.hf.support import VOCABULARY, stir, tokens
from tests.hf.test_generation import drawn

DELTA = KimiDelta(heads=2, head_dim=8)
LATENT = Latent(heads=2, kv_rank=8, head_dim=8, shared_dim=4, value_dim=8)
TURNED = GroupedQuery(heads=2, kv_heads=1, head_dim=8)
WINDOWED = GroupedQuery(heads=2, kv_heads=1, head_dim=8, window=3)
MAMBA = StateSpace(heads=2, head_dim=4, state_dim=4)
KIMI = (DELTA, LATENT, DELTA)


def hybrid(mixers: tuple[TokenMixerConfig, ...] = KIMI, vocab_size: int = VOCABULARY) -> HybridConfig:
    channels = (Gated(24), *[Experts(hidden=8, experts=4, top_k=2)] * (len(mixers) - 1))
    return HybridConfig(vocab_size, 16, mixers, channels, AttnRes(Sublayers(2)))


def decoder(mixers: tuple[TokenMixerConfig, ...] = KIMI) -> Decoder:
    made = build_decoder(hybrid(mixers), seed=0)
    stir(made)
    return made.eval()


def wrapped(mixers: tuple[TokenMixerConfig, ...] = KIMI) -> Any:
    return wrap_decoder(decoder(mixers), max_position_embeddings=64, eos_token_id=0, pad_token_id=0)


def padded_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    mask = torch.ones_like(tokens())
    mask[0, :4] = 0
    return tokens() * mask, mask


def test_the_config_goes_there_and_back(tmp_path: Path) -> None:
    config = AttnResHybridConfig.from_decoder_config(hybrid())
    config.save_pretrained(tmp_path)
    again = AttnResHybridConfig.from_pretrained(tmp_path)
    assert again.to_decoder_config() == hybrid()
    assert again.layer_types == ["linear_attention", "full_attention", "linear_attention"]
    assert again.number_of_conv_states == 4 and again.block_sublayers == 2
    assert "KimiDelta" in repr(again)


def test_it_is_saved_and_loaded_with_the_logits_of_the_decoder(tmp_path: Path) -> None:
    model = wrapped()
    assert type(model) is AttnResHybridForCausalLM and model.model.config == hybrid()
    with torch.no_grad():
        expected = decoder()(tokens())
        assert torch.equal(model(tokens()).logits, expected)
        model.save_pretrained(tmp_path)
        loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
        assert torch.equal(loaded(tokens()).logits, expected)


@pytest.mark.parametrize(
    "mixers",
    [KIMI, (DELTA, TURNED), (DELTA, DELTA), (LATENT, LATENT), (WINDOWED, TURNED), (WINDOWED, MAMBA), (MAMBA, TURNED)],
)
@pytest.mark.parametrize("padded", [False, True])
def test_every_cache_gives_the_same(mixers: tuple[TokenMixerConfig, ...], padded: bool) -> None:
    model, (ids, mask) = wrapped(mixers), padded_tokens()
    if not padded:
        ids, mask = tokens(), torch.ones_like(mask)
    expected = drawn(model, ids, attention_mask=mask, use_cache=False)
    assert torch.equal(drawn(model, ids, attention_mask=mask), expected)
    if mixers in (KIMI, (DELTA, TURNED), (WINDOWED, TURNED)):
        assert torch.equal(drawn(model, ids, attention_mask=mask, cache_implementation="static"), expected)
    prompts = [row[kept.bool()] for row, kept in zip(ids, mask, strict=True)]
    ours = generate(model.model, prompts, tokens=12)
    assert torch.equal(torch.stack(ours), expected[:, ids.shape[1] :])


def test_beams_take_their_states_along() -> None:
    model = wrapped()
    options = {"num_beams": 3, "max_new_tokens": 6}
    assert torch.equal(drawn(model, tokens(), **options), drawn(model, tokens(), use_cache=False, **options))


@pytest.mark.parametrize("static", [False, True])
def test_a_prompt_in_chunks_is_the_same(static: bool) -> None:
    model = wrapped()
    ids, mask = padded_tokens()
    cache: Any = StaticCache(model.config, 16) if static else DynamicCache(config=model.config)
    with torch.no_grad():
        expected = model(ids, attention_mask=mask, use_cache=False).logits
        parts = [
            model(ids[:, begin:end], attention_mask=mask[:, :end], cache=cache).logits
            for begin, end in ((0, 3), (3, 7), (7, 9))
        ]
    seen = mask.bool()
    torch.testing.assert_close(torch.cat(parts, 1)[seen], expected[seen])


def test_the_loss_has_gradients_and_steps_can_be_recomputed() -> None:
    def gradients(recomputed: bool) -> list[torch.Tensor]:
        model = wrapped().train()
        if recomputed:
            model.activation_checkpointing_enable()
        model(tokens(), labels=tokens()).loss.backward()
        return [value.grad for value in model.parameters() if value.grad is not None]

    plain, recomputed = gradients(False), gradients(True)
    assert len(plain) == len(recomputed) > 0
    for one, other in zip(plain, recomputed, strict=True):
        torch.testing.assert_close(one, other)


def test_an_exported_run_writes_what_the_run_does(tmp_path: Path) -> None:
    text = b"the quick brown fox jumps over the lazy dog, and the dog does not mind at all. " * 40
    config = TrainConfig(hybrid(vocab_size=257), steps=2, checkpoint_every_steps=2, text=TextConfig(sequence_tokens=32))
    data = TokenData.from_bytes(text, text[:1000], 32)
    list(steps_of(start_training(config, data, tmp_path / "run", about={})))
    export(tmp_path / "run", tmp_path / "exported")
    assert cli.main(["generate", str(tmp_path / "exported"), "--prompt", "the", "--tokens", "3"]) == 0
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert type(load_exported(tmp_path / "exported")) is type(loaded) is AttnResHybridForCausalLM
    with torch.no_grad():
        assert torch.equal(loaded(tokens()).logits, load_trained(tmp_path / "run").model.eval()(tokens()))


def test_wrong_input_is_one_sentence() -> None:
    model = wrapped()
    with pytest.raises(InputError, match=r"DynamicCache has no room for the state of layer 0.*config=model.config"):
        model(tokens(), cache=DynamicCache())
    windowed = wrapped((WINDOWED, MAMBA))
    with torch.no_grad():
        cache = windowed(tokens()).cache
        windowed(tokens(), attention_mask=torch.ones(2, 18), cache=cache)
    with pytest.raises(InputError, match="no layer of this model counts the tokens in its cache; give position_ids"):
        windowed(tokens(), cache=cache)
    with pytest.raises(InputError, match="a recurrent layer sees no pairs"):
        model(tokens(), attention_mask=torch.ones(2, 1, 9, 9, dtype=torch.bool))
    with pytest.raises(InputError, match=r"model is of a HybridConfig, and AttnResForCausalLM wraps .* DecoderConfig"):
        AttnResForCausalLM.from_decoder(decoder())
    with pytest.raises(InputError, match="num_hidden_layers is 4, and mixers names 3 layers"):
        AttnResHybridConfig(num_hidden_layers=4, mixers=hybrid().mixers, channels=hybrid().channels)
    with pytest.raises(InputError, match="top_k"):
        AttnResHybridConfig(
            num_hidden_layers=1,
            mixers=[{"type": "KimiDelta", "heads": 1, "head_dim": 4}],
            channels=[{"type": "Experts", "hidden": 4, "experts": 2, "top_k": 3}],
        )
