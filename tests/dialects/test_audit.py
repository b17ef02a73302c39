"""Every tensor is used or known to be unused, and every key of a config is understood: else one sentence says so."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attention_residuals import AttnRes, InputError, Layers, ReadScale, Sublayers, build_decoder
from attention_residuals.dialects import load_kimi, save_kimi
from attention_residuals.models import (
    DecoderConfig,
    Experts,
    Gated,
    GroupedQuery,
    HybridConfig,
    KimiDelta,
    Latent,
    kimi_linear,
)
from attention_residuals.streams import PostNorm, Query

from .support import RANK, WIDTH, draw_tensors, kimi_config, write

LAYERS, BLOCK = 5, 2
Tensors = dict[str, Tensor]


def without(*parts: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {k: v for k, v in tensors.items() if not any(part in k for part in parts)}


def with_tensor(name: str, *shape: int) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {**tensors, name: torch.zeros(shape)}


def renumbered(tensors: Tensors) -> Tensors:
    """Layers counted from 1."""
    order = range(LAYERS - 1, -1, -1)
    for i in order:
        tensors = {k.replace(f"layers.{i}.", f"layers.{i + 1}."): v for k, v in tensors.items()}
    return tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("layers.3.mlp_res_norm"), r"it lacks model\.layers\.3\.mlp_res_norm\.weight; "),
        (without("layers.0.self_attention_res_proj"), r"it lacks model\.layers\.0\.self_attention_res_proj\.weight; "),
        (without("output_attn"), r"lacks model\.output_attn_res_norm\.weight, model\.output_attn_res_proj\.weight; "),
        (without("layers.4."), r"lacks model\.layers\.4\.input_layernorm\.weight, .*, .* and \d\d more; "),
        (without("experts.2.w3"), r"lacks model\.layers\.1\.block_sparse_moe\.experts\.2\.w3\.weight"),
        (without("lm_head"), r"it lacks lm_head\.weight; "),
        (without("_res_"), "asks for depth attention, and its weights have none"),
        (with_tensor("model.layers.5.mlp_res_norm.weight", WIDTH), r"unexpected model\.layers\.5\.mlp_res_norm"),
        (with_tensor("vision_tower.weight", 2), r"it has unexpected vision_tower\.weight; "),
        (with_tensor("model.layers.1.mlp.experts.gate_up_proj", 4, 12, WIDTH), r"has unexpected .*gate_up_proj; "),
        (with_tensor("model.layers.0.self_attn.forget_gate.A_log", 1, 1, 2, 1), "has unexpected .*forget_gate"),
        (with_tensor("module.lm_head.weight", 11, WIDTH), r"module\.lm_head\.weight.*the same tensor|lm_head.*same"),
        (with_tensor("model.layers.1.mlp_res_proj.weight", WIDTH), r"mlp_res_proj\.weight \(\[12\], .* \[1, 12\]\)"),
        (with_tensor("model.layers.0.self_attention_res_norm.weight", 3), r"res_norm\.weight \(\[3\], .* \[12\]\)"),
        (with_tensor("model.layers.2.self_attn.kv_b_proj.weight", 7, RANK), r"kv_b_proj\.weight \(\[7, 5\], "),
        (with_tensor("model.layers.1.self_attn.A_log", 2), r"A_log \(\[2\], by the config \[1, 1, 2, 1\]\)"),
        (lambda tensors: {k: v * torch.nan if "layers.1.mlp_res_norm" in k else v for k, v in tensors.items()}, "NaN"),
        (
            lambda tensors: {k: v.to(torch.int8) if "b_proj" in k else v for k, v in tensors.items()},
            "a quantised weight",
        ),
        (renumbered, r"lacks model\.layers\.0\..* and 54 more, has unexpected model\.layers\.1\..* and 54 more, "),
    ],
)
def test_tensors(change: Callable[[Tensors], Tensors], message: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "k", kimi_config(LAYERS, BLOCK), change(draw_tensors(LAYERS, depth=True)))
    with pytest.raises(InputError, match=message) as caught:
        load_kimi(folder)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


def test_depth_tensors_without_a_block_size(tmp_path: Path) -> None:
    folder = write(tmp_path / "k", kimi_config(LAYERS, None), draw_tensors(LAYERS, depth=True))
    message = r"has model\.layers\.0\.mlp_res_norm\.weight, .* and 19 more, tensors of depth attention, and"
    with pytest.raises(InputError, match=message):
        load_kimi(folder)


LINEAR = kimi_config(LAYERS, BLOCK)["linear_attn_config"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_res_block_size": 0}, "attn_res_block_size is 0; it must be a whole number of layers of at least 1"),
        ({"attn_res_block_size": -2}, "attn_res_block_size is -2"),
        ({"attn_res_block_size": 2.5}, r"attn_res_block_size is 2\.5"),
        ({"attn_res_block_size": 2.0}, r"attn_res_block_size is 2\.0"),
        ({"attn_res_block_size": True}, "attn_res_block_size is True"),
        ({"attn_res_block_size": "2"}, "attn_res_block_size is '2'"),
        ({"attn_res_block_size": 11}, "is 11, more than the 10 sublayers there are, and it counts layers"),
        ({"attnres_block_size": 4}, "attnres_block_size is of another dialect"),
        ({"attnres_num_blocks": 3}, "attnres_num_blocks is of another dialect"),
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"num_hidden_layers": 6}, r"kda_layers .* do not name each of 6 layers once"),
        ({"linear_attn_config": {**LINEAR, "kda_layers": [0, 1, 3, 4]}}, "once, from 1 on"),
        (
            {"linear_attn_config": {**LINEAR, "gate_lower_bound": -5.0}},
            r"gate_lower_bound is -5\.0, which is not computed",
        ),
        ({"linear_attn_config": {**LINEAR, "use_full_rank_gate": True}}, "use_full_rank_gate is True"),
        ({"layer_types": ["linear_attention"] * 5}, "linear_attn_config says .* and layer_types says"),
        ({"layer_types": ["sliding"] * 5}, "layer_types is"),
        ({"mlp_layer_types": ["sparse"] * 5}, "first_k_dense_replace says .* and mlp_layer_types says"),
        ({"num_local_experts": 5}, "num_experts says 4 and num_local_experts says 5"),
        ({"num_experts_per_tok": 3}, "num_experts_per_token says 2 and num_experts_per_tok says 3"),
        ({"n_shared_experts": 2}, "num_shared_experts says 1 and n_shared_experts says 2"),
        ({"first_k_dense_replace": None}, "the config has neither first_k_dense_replace nor mlp_layer_types"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace is -1"),
        (
            {"mla_use_output_gate": True},
            "mla_use_output_gate is True, which is not computed here; it must be False or None",
        ),
        ({"mla_use_nope": False}, "mla_use_nope is False"),
        ({"routed_expert_hidden_size": 8}, "routed_expert_hidden_size is 8"),
        ({"hidden_act": "situ"}, "hidden_act is 'situ'"),
        ({"moe_renormalize": False}, "moe_renormalize is False"),
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers is 1"),
        ({"quantization_config": {"bits": 4}}, "quantization_config is"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1 and num_attention_heads 2"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; it must be a positive number"),
        ({"hidden_size": None}, "the config has no hidden_size"),
        ({"vocab_size": "11"}, "vocab_size is '11'; it must be a whole number"),
    ],
)
def test_config_keys(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    config = {**kimi_config(LAYERS, BLOCK), **changes}
    with pytest.raises(InputError, match=message):
        load_kimi(write(tmp_path / "k", config, draw_tensors(1, depth=True)))


def test_two_levels_of_a_config_that_disagree(tmp_path: Path) -> None:
    for key, other in (("attn_res_block_size", 3), ("tie_word_embeddings", True)):
        outer = {"model_type": "kimi_k3", key: other, "text_config": kimi_config(LAYERS, BLOCK)}
        with pytest.raises(InputError, match=f"text_config.{key} says .* and {key} says {other}"):
            load_kimi(write(tmp_path / key, outer, draw_tensors(1, depth=True)))


def hybrid(mixers: tuple[Any, ...], channels: tuple[Any, ...], **fields: Any) -> HybridConfig:
    return HybridConfig(vocab_size=5, width=8, mixers=mixers, channels=channels, **fields)


DELTA, LATENT, DENSE, MIXTURE = KimiDelta(2, 4), Latent(2, 5, 4, 2, 3), Gated(6), Experts(3, 4, 2)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DecoderConfig.from_depth(2), "Kimi names know KimiDelta and Latent, and a layer has GroupedQuery"),
        (hybrid((DELTA, GroupedQuery(2, 1, 6)), (DENSE, DENSE)), "and a layer has GroupedQuery"),
        (hybrid((DELTA, KimiDelta(2, 6)), (DENSE, DENSE)), "the config has room for one of them"),
        (hybrid((DELTA, DELTA), (MIXTURE, replace(MIXTURE, scale=2.0))), "the config has room for one of them"),
        (hybrid((replace(LATENT, rope_theta=1e4),), (DENSE,)), "rope_theta is 10000"),
        (hybrid((LATENT,), (DENSE,), norm_eps=1e-5), "latents are normed with eps 1e-05"),
        (hybrid((DELTA,) * 4, (DENSE, MIXTURE, MIXTURE, DENSE)), r"layers \[1, 2\] have experts, 0-based"),
        (kimi_linear(4, residual=AttnRes()), "a block has 1 sublayers, which is no whole number of layers"),
        (kimi_linear(4, residual=AttnRes(Sublayers(3))), "a block has 3 sublayers"),
        (kimi_linear(4, residual=AttnRes(Layers(2), key_eps=1e-5)), "key_eps is 1e-05 and norm_eps 1e-06"),
        (kimi_linear(4, residual=AttnRes(Layers(2), scale=ReadScale.SUM)), "the method without variants"),
        (kimi_linear(4, residual=AttnRes(Layers(2), output_read=False)), "the method without variants"),
        (kimi_linear(4, residual=AttnRes(Layers(2), query=Query.PROJECTED)), "the method without variants"),
        (kimi_linear(4, residual=PostNorm()), "the residual is PostNorm"),
    ],
)
def test_models_that_kimi_names_cannot_tell(config: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        save_kimi(build_decoder(config, seed=0), tmp_path / "k")
    assert not list(tmp_path.iterdir())


def test_every_other_layer_of_experts(tmp_path: Path) -> None:
    config = hybrid((DELTA,) * 5, (DENSE, DENSE, MIXTURE, DENSE, MIXTURE))
    save_kimi(build_decoder(config, seed=0), tmp_path / "k")
    assert load_kimi(tmp_path / "k").config == config
