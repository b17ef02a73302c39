"""Tiny checkpoints under Kimi names, written without the library: names and shapes as published, numbers drawn."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

VOCABULARY, WIDTH, HEADS, HEAD_DIM, EPS = 11, 12, 2, 4, 1e-5
RANK, OWN, SHARED, VALUE = 5, 4, 2, 3
MLP, EXPERTS, HIDDEN, CHOSEN = 10, 4, 6, 2
KERNEL = 4


def kimi_config(layers: int, block: int | None, **changes: Any) -> dict[str, Any]:
    """Every third layer is latent attention, the first MLP dense, all others experts and a shared one."""
    full = [layer for layer in range(1, layers + 1) if layer % 3 == 0]
    return {
        "model_type": "kimi_linear",
        "vocab_size": VOCABULARY,
        "hidden_size": WIDTH,
        "num_hidden_layers": layers,
        "rms_norm_eps": EPS,
        "hidden_act": "silu",
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "kv_lora_rank": RANK,
        "q_lora_rank": None,
        "qk_nope_head_dim": OWN,
        "qk_rope_head_dim": SHARED,
        "v_head_dim": VALUE,
        "mla_use_nope": True,
        "linear_attn_config": {
            "num_heads": HEADS,
            "head_dim": HEAD_DIM,
            "short_conv_kernel_size": KERNEL,
            "full_attn_layers": full,
            "kda_layers": [layer for layer in range(1, layers + 1) if layer not in full],
        },
        "intermediate_size": MLP,
        "moe_intermediate_size": HIDDEN,
        "num_experts": EXPERTS,
        "num_experts_per_token": CHOSEN,
        "num_shared_experts": 1,
        "num_expert_group": 1,
        "topk_group": 1,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "routed_scaling_factor": 2.446,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "tie_word_embeddings": False,
        **({} if block is None else {"attn_res_block_size": block}),
        **changes,
    }


def is_latent(layer: int) -> bool:
    return (layer + 1) % 3 == 0


def kimi_shapes(layers: int, depth: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
        "lm_head.weight": (VOCABULARY, WIDTH),
    }
    for layer in range(layers):
        found = {"input_layernorm.weight": (WIDTH,), "post_attention_layernorm.weight": (WIDTH,)}
        attention = _latent_shapes() if is_latent(layer) else _delta_shapes()
        found |= {f"self_attn.{name}": shape for name, shape in attention.items()}
        if layer:
            experts = {**_gated_shapes("shared_experts.", HIDDEN), "gate.weight": (EXPERTS, WIDTH)}
            experts["gate.e_score_correction_bias"] = (EXPERTS,)
            for e in range(EXPERTS):
                experts |= {f"experts.{e}.w1.weight": (HIDDEN, WIDTH), f"experts.{e}.w3.weight": (HIDDEN, WIDTH)}
                experts[f"experts.{e}.w2.weight"] = (WIDTH, HIDDEN)
            found |= {f"block_sparse_moe.{name}": shape for name, shape in experts.items()}
        else:
            found |= _gated_shapes("mlp.", MLP)
        if depth:
            for kind in ("self_attention", "mlp"):
                found |= {f"{kind}_res_norm.weight": (WIDTH,), f"{kind}_res_proj.weight": (1, WIDTH)}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in found.items()}
    if depth:
        shapes |= {"model.output_attn_res_norm.weight": (WIDTH,), "model.output_attn_res_proj.weight": (1, WIDTH)}
    return shapes


def draw_tensors(layers: int, depth: bool, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Norms around 1; matrices of outputs of size 1. Depth projections are half as large as their keys: with sharper
    reads a deep network makes thousands of times as much of its rounding."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in kimi_shapes(layers, depth).items():
        drawn = torch.randn(shape, generator=generator)
        if "norm" in name:
            drawn = 1 + drawn / 4
        elif "_res_proj" in name:
            drawn = drawn / 2
        elif "bias" not in name and "A_log" not in name:
            drawn = drawn * shape[-1] ** -0.5
        found[name] = drawn.to(torch.float32 if "e_score" in name else dtype)
    return found


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def read(folder: Path) -> dict[str, Tensor]:
    """The tensors of all weight files of a folder."""
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name


def _gated_shapes(prefix: str, hidden: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}gate_proj.weight": (hidden, WIDTH),
        f"{prefix}up_proj.weight": (hidden, WIDTH),
        f"{prefix}down_proj.weight": (WIDTH, hidden),
    }


def _latent_shapes() -> dict[str, tuple[int, ...]]:
    return {
        "q_proj.weight": (HEADS * (OWN + SHARED), WIDTH),
        "kv_a_proj_with_mqa.weight": (RANK + SHARED, WIDTH),
        "kv_a_layernorm.weight": (RANK,),
        "kv_b_proj.weight": (HEADS * (OWN + VALUE), RANK),
        "o_proj.weight": (WIDTH, HEADS * VALUE),
    }


def _delta_shapes() -> dict[str, tuple[int, ...]]:
    features = HEADS * HEAD_DIM
    return {
        **{f"{letter}_proj.weight": (features, WIDTH) for letter in "qkv"},
        **{f"{letter}_conv1d.weight": (features, 1, KERNEL) for letter in "qkv"},
        **{f"{letter}_a_proj.weight": (HEAD_DIM, WIDTH) for letter in "fg"},
        **{f"{letter}_b_proj.weight": (features, HEAD_DIM) for letter in "fg"},
        "b_proj.weight": (HEADS, WIDTH),
        "dt_bias": (features,),
        "A_log": (1, 1, HEADS, 1),
        "o_norm.weight": (HEAD_DIM,),
        "o_proj.weight": (WIDTH, features),
    }
