"""Whole models against `kimi_linear` of transformers: its checkpoints here, ours there, and what its names are."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import KimiLinearConfig, KimiLinearForCausalLM

from attention_residuals import Additive, Decoder
from attention_residuals.dialects import load_kimi, save_kimi

from .support import VOCABULARY, assert_same_bits, kimi_config, read

LAYERS = 5
TOKENS = torch.randint(VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(1))
QUERY_RANK = {"q_lora_rank": 7}


def their_model(**changes: Any) -> Any:
    torch.manual_seed(0)
    config = {**kimi_config(LAYERS, None), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **changes}
    model: Any = KimiLinearForCausalLM(KimiLinearConfig(**config))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if "norm" in name or "bias" in name:
                value.add_(torch.randn(value.shape, generator=generator) / 4)
            elif value.dim() > 1:
                value.copy_(torch.randn(value.shape, generator=generator) * value.shape[-1] ** -0.5)
    return ready(model)


def ready(model: Any) -> Any:
    """In float32: their router and their states are float32 whatever the model is."""
    model.set_experts_implementation("eager")
    return model.eval().requires_grad_(False)


def assert_same_logits(ours: Decoder, theirs: Any) -> None:
    found, expected = ours(TOKENS), theirs(TOKENS, use_cache=False).logits
    # Each of ten sublayers adds the rounding of its sums, of up to 64 terms one after another.
    allowed = 64 * 2 * LAYERS * torch.finfo(torch.float32).eps
    assert (found - expected).abs().max() <= allowed * expected.abs().max()


@pytest.mark.parametrize("changes", [{}, QUERY_RANK, {"num_experts": 8, "num_expert_group": 2, "n_group": 2}])
@pytest.mark.parametrize("published", [True, False])
def test_their_checkpoint_here(published: bool, changes: dict[str, Any], tmp_path: Path) -> None:
    theirs = their_model(**changes)
    theirs.save_pretrained(tmp_path, save_original_format=published)
    assert ("model.layers.1.mlp.experts.gate_up_proj" in read(tmp_path)) is not published
    ours = load_kimi(tmp_path)
    assert ours.config.residual == Additive() and not ours.training
    assert_same_logits(ours, theirs)


@pytest.mark.parametrize("shard_bytes", [10**9, 4000])
@pytest.mark.parametrize("changes", [{}, QUERY_RANK])
def test_our_checkpoint_there(changes: dict[str, Any], shard_bytes: int, tmp_path: Path) -> None:
    their_model(**changes).save_pretrained(tmp_path / "theirs")
    ours = load_kimi(tmp_path / "theirs")
    save_kimi(ours, tmp_path / "ours", shard_bytes=shard_bytes)
    load: Any = KimiLinearForCausalLM.from_pretrained
    loaded, info = load(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values())
    assert_same_logits(ours, ready(loaded))
    # And to the last bit, but for the dense MLP, which transformers saves under the name of the experts.
    expected = {
        name.replace("layers.0.block_sparse_moe", "layers.0.mlp"): tensor
        for name, tensor in read(tmp_path / "theirs").items()
    }
    assert_same_bits(read(tmp_path / "ours"), expected)


def test_layers_from_their_lists(tmp_path: Path) -> None:
    changes = {
        "linear_attn_config": None,
        "first_k_dense_replace": None,
        "layer_types": ["linear_attention", "full_attention"],
        "mlp_layer_types": ["sparse", "dense"],
        "num_hidden_layers": 2,
        "linear_num_heads": 3,
        "linear_head_dim": 4,
        "linear_conv_kernel_dim": 3,
    }
    config = {**kimi_config(2, None), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, **changes}
    theirs: Any = KimiLinearForCausalLM(KimiLinearConfig(**{k: v for k, v in config.items() if v is not None}))
    theirs.save_pretrained(tmp_path)
    assert_same_logits(load_kimi(tmp_path), ready(theirs))
