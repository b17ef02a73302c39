"""Whole models under the names of flash-linear-attention: a forward by hand, there and back, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attention_residuals import Additive, AttnRes, InputError, Layers, Sublayers, build_decoder
from attention_residuals.dialects import DEPTH_DIALECTS, FLA, depth_of, load, save, save_depth
from attention_residuals.models import DecoderConfig, Gated, GroupedQuery, HybridConfig, KimiDelta
from attention_residuals.streams import PostNorm

from .fla_support import EPS, HEAD, HEADS, KV_HEADS, MLP, VOCABULARY, WIDTH, fla_config, fla_logits, fla_tensors
from .support import assert_same_bits, read, write

LAYERS = 5
TOKENS = torch.randint(VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("block", [None, 1, 2, 4])
def test_logits_are_those_of_the_forward_by_hand(block: int | None, tied: bool, tmp_path: Path) -> None:
    tensors = fla_tensors(LAYERS, block is not None, tied)
    config = fla_config(LAYERS, block, tie_word_embeddings=tied)
    model = load(write(tmp_path / "fla", config, tensors), dtype=torch.float64).requires_grad_(False)
    assert model.config.residual == (Additive() if block is None else AttnRes(Sublayers(block), key_eps=EPS))
    found, expected = model(TOKENS), fla_logits(tensors, TOKENS, LAYERS, block)
    # Each of ten sublayers adds the rounding of its sums, of up to 64 terms one after another.
    allowed = 64 * 2 * LAYERS * torch.finfo(torch.float64).eps
    assert (found - expected).abs().max() <= allowed * expected.abs().max()


def test_another_unit_is_another_network() -> None:
    tensors = fla_tensors(LAYERS, depth=True)
    one, other = (fla_logits(tensors, TOKENS, LAYERS, block) for block in (2, 4))
    assert (one - other).abs().max() > 0.05


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # slower, and no less right
@pytest.mark.parametrize("shard_bytes", [10**9, 1000])
@pytest.mark.parametrize("block", [None, 1, 4])
def test_there_and_back_to_the_last_bit(block: int | None, shard_bytes: int, tmp_path: Path) -> None:
    tensors = fla_tensors(LAYERS, block is not None, dtype=torch.bfloat16)
    for name in tensors:
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            tensors[name] = tensors[name].float()  # as the package keeps them
        if "layers.0.attn_res" in name:
            tensors[name] = tensors[name].fill_("norm" in name)
    model = load(write(tmp_path / "theirs", fla_config(LAYERS, block), tensors))
    assert model(TOKENS).isfinite().all()
    save(model, tmp_path / "ours", FLA, shard_bytes=shard_bytes)
    assert_same_bits(read(tmp_path / "ours"), tensors)
    again = load(tmp_path / "ours")
    assert again.config == model.config
    found = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert fla_config(LAYERS, block).items() >= {k: v for k, v in found.items() if k not in ADDED}.items()


ADDED = ("dtype", "pad_token_id", "bos_token_id", "eos_token_id")


def test_kimi_s_twelve_layers_are_twenty_four_sublayers(tmp_path: Path) -> None:
    model = build_decoder(DecoderConfig.from_depth(13, residual=AttnRes(Layers(12))), seed=0)
    save(model, tmp_path / "fla", FLA)
    save_depth(depth_of(model), tmp_path / "kimi", DEPTH_DIALECTS["kimi"])
    fla, kimi = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("fla", "kimi"))
    assert (fla["attnres_block_size"], kimi["attn_res_block_size"]) == (24, 12)
    back = load(tmp_path / "fla")
    assert back.config.residual == AttnRes(Sublayers(24))
    assert_same_bits(back.state_dict(), model.state_dict())


def test_sizes_that_the_package_derives(tmp_path: Path) -> None:
    config = {**fla_config(1, None), "intermediate_size": None, "num_kv_heads": None, "qk_norm": False}
    found = FLA.from_plain(config)
    assert found == DecoderConfig(
        VOCABULARY, 1, WIDTH, HEADS, HEADS, HEAD, 256, Additive(), config["rope_theta"], norm_eps=EPS
    )
    assert FLA.from_plain({**config, "hidden_size": 1020, "num_heads": 51}) == DecoderConfig(
        VOCABULARY, 1, 1020, 51, 51, 20, 2816, Additive(), config["rope_theta"], norm_eps=EPS
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attnres_block_size": 0}, "attnres_block_size is 0; it must be a whole number of sublayers of at least 1"),
        (
            {"attnres_block_size": 3},
            "attnres_block_size is 3, and it counts sublayers, of which a layer has 2: under fla",
        ),
        ({"attnres_block_size": 2.0}, r"attnres_block_size is 2\.0"),
        (
            {"attnres_block_size": None},
            r"has model\.layers\.0\.attn_res_norm\.weight, .* and its config has no block size",
        ),
        (
            {"attn_res_block_size": 2},
            "attn_res_block_size is of another dialect, where it counts layers; under fla names",
        ),
        (
            {"attnres_num_blocks": 2},
            "attnres_num_blocks is of another dialect, where it counts blocks, and systems cut",
        ),
        ({"qkv_bias": True}, "qkv_bias is True, which is not computed here"),
        ({"window_size": 8}, "window_size is 8, which is not computed here; it must be None"),
        ({"hidden_act": "powlu"}, "hidden_act is 'powlu'"),
        (
            {"norm_eps": 1e-6},
            "qk_norm is on and norm_eps is 1e-06: under fla names queries and keys are normed with eps",
        ),
        ({"num_heads": 5}, "num_heads is 5, which does not divide hidden_size 12"),
        ({"rope_theta": None}, "rope_theta is None; it must be a positive number"),
        ({"num_hidden_layers": 6}, r"lacks model\.layers\.5\.attn_norm\.weight"),
        (
            {"num_kv_heads": 3},
            r"differs in model\.layers\.0\.attn\.k_proj\.weight \(\[4, 12\], by the config \[12, 12\]\)",
        ),
        ({"tie_word_embeddings": True}, "embeddings are tied, and lm_head.weight has other numbers"),
        ({"model_type": "kimi_linear"}, "hidden_act is 'swish', which is not computed here"),
        ({"model_type": "qwen3"}, r"no dialect that is known; there are .*; its attnres_block_size counts sublayers$"),
    ],
)
def test_config_keys(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "fla", {**fla_config(LAYERS, 2), **changes}, fla_tensors(LAYERS, depth=True))
    with pytest.raises(InputError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_half_a_checkpoint_and_broken_tensors(tmp_path: Path) -> None:
    tensors, config = fla_tensors(LAYERS, depth=True), fla_config(LAYERS, 2)
    changed = {
        "half": ({n: t for n, t in tensors.items() if "layers.4" not in n}, r"lacks model\.layers\.4\..* and 12 more"),
        "shape": (
            {**tensors, "model.res_proj.weight": torch.zeros(WIDTH)},
            r"res_proj\.weight \(\[12\], by the config",
        ),
        "type": (
            {**tensors, "model.norm.weight": torch.zeros(WIDTH, dtype=torch.int8)},
            r"model\.norm\.weight .* is I8",
        ),
        "nan": ({**tensors, "model.norm.weight": torch.full((WIDTH,), torch.nan)}, r"NaN .* in model\.norm\.weight"),
        "odd": (
            {**tensors, "model.layers.1.attn.g.weight": torch.zeros(1)},
            r"unexpected model\.layers\.1\.attn\.g\.w",
        ),
        "none": (
            {n: t for n, t in tensors.items() if "res_" not in n},
            "asks for depth attention, and its weights have",
        ),
    }
    for name, (found, message) in changed.items():
        with pytest.raises(InputError, match=message):
            load(write(tmp_path / name, config, found))
    wrapped = {f"module._orig_mod.{name}": tensor for name, tensor in tensors.items()}
    expected = load(write(tmp_path / "plain", config, tensors)).state_dict()
    assert_same_bits(load(write(tmp_path / "wrapped", config, wrapped)).state_dict(), expected)


ATTENTION = GroupedQuery(2, 1, 4)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            HybridConfig(5, 8, (ATTENTION, KimiDelta(2, 4)), (Gated(6),) * 2),
            "know GroupedQuery and Gated, and a layer has",
        ),
        (HybridConfig(5, 8, (ATTENTION,) * 2, (Gated(6), Gated(5))), "the config has room for one of them"),
        (HybridConfig(5, 8, (GroupedQuery(2, 1, 6),), (Gated(6),)), "2 heads of 6 features are not the width 8"),
        (DecoderConfig.from_depth(2, residual=AttnRes(key_eps=1e-5)), "key_eps is 1e-05 and norm_eps 1e-06; under fla"),
        (
            DecoderConfig.from_depth(2, residual=AttnRes(Sublayers(3))),
            "a block has 3 sublayers, so that one ends inside",
        ),
        (
            DecoderConfig.from_depth(2, residual=PostNorm()),
            "fla names know Additive and AttnRes, and the residual is Post",
        ),
        (DecoderConfig(5, 1, 8, 2, 1, 4, MLP, qk_norm=True), "qk_norm is on and norm_eps is 1e-06"),
    ],
)
def test_models_that_fla_names_cannot_tell(config: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        save(build_decoder(config, seed=0), tmp_path / "fla", FLA)
    assert not list(tmp_path.iterdir())


def test_a_model_layer_by_layer_is_the_same_to_them(tmp_path: Path) -> None:
    attention = GroupedQuery(HEADS, KV_HEADS, HEAD)
    model = build_decoder(HybridConfig(5, WIDTH, (attention,) * 2, (Gated(6),) * 2, AttnRes()), seed=0)
    save(model, tmp_path / "fla", FLA)
    back = load(tmp_path / "fla")
    assert isinstance(back.config, DecoderConfig)
    assert torch.equal(back(TOKENS.clamp(max=4)), model(TOKENS.clamp(max=4)))
