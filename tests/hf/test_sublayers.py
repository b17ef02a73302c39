"""Latent attention and experts against the layers of transformers, with the same weights."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DeepseekV3Config, KimiLinearConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3Attention,
    DeepseekV3MoE,
    DeepseekV3RotaryEmbedding,
)
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearAttention, KimiLinearMoE

from attention_residuals.inference import GrowingCache
from attention_residuals.nn import Context, LatentAttention, MixtureOfExperts, rotation

WIDTH, HEADS, RANK, OWN, SHARED, VALUE, EXPERTS, HIDDEN = 32, 4, 16, 12, 8, 10, 8, 12
EPS = torch.finfo(torch.float32).eps
COMMON: dict[str, Any] = {
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "kv_lora_rank": RANK,
    "qk_nope_head_dim": OWN,
    "qk_rope_head_dim": SHARED,
    "v_head_dim": VALUE,
    "moe_intermediate_size": HIDDEN,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "routed_scaling_factor": 2.446,
    "attn_implementation": "eager",
}


def stir(module: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, value in [*module.named_parameters(), *module.named_buffers()]:
            drawn = torch.randn(value.shape, generator=generator)
            value.copy_(1 + drawn / 4 if "layernorm" in name else drawn * value.shape[-1] ** -0.5)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    """Float32 sums of up to 50 terms, several one after another."""
    assert (ours - theirs).abs().max() <= 32 * EPS * theirs.abs().max()


def copied(theirs: nn.Module, theta: float | None, pairs: bool) -> LatentAttention:
    """Ours with their weights. `pairs`: they rotate neighbouring features, and ours the two halves."""
    weights = theirs.state_dict()
    low_rank = "q_a_proj.weight" in weights
    ours = LatentAttention(
        WIDTH, HEADS, RANK, OWN, SHARED, VALUE, rope_theta=theta, query_rank=10 if low_rank else None
    )
    order = torch.arange(SHARED)
    if pairs:
        order = order.view(-1, 2).T.flatten()
    query = weights["q_b_proj.weight" if low_rank else "q_proj.weight"].unflatten(0, (HEADS, OWN + SHARED))
    down = weights["kv_a_proj_with_mqa.weight"]
    up = weights["kv_b_proj.weight"].unflatten(0, (HEADS, OWN + VALUE))
    renamed = {
        "query.weight": torch.cat((query[:, :OWN], query[:, OWN:][:, order]), 1).flatten(0, 1),
        "latent.weight": down[:RANK],
        "shared_key.weight": down[RANK:][order],
        "latent_norm.weight": weights["kv_a_layernorm.weight"],
        "key.weight": up[:, :OWN].flatten(0, 1),
        "value.weight": up[:, OWN:].flatten(0, 1),
        "output.weight": weights["o_proj.weight"],
    }
    if low_rank:
        renamed["query_latent.weight"] = weights["q_a_proj.weight"]
        renamed["query_norm.weight"] = weights["q_a_layernorm.weight"]
    ours.load_state_dict(renamed)
    return ours


def causal(tokens: int) -> Tensor:
    return torch.full((tokens, tokens), float("-inf")).triu(1)[None, None]


def cached(ours: LatentAttention, x: Tensor) -> Tensor:
    """Five tokens at once, the others one by one."""
    cache, found = GrowingCache(), []
    for begin, end in [(0, 5), *((i, i + 1) for i in range(5, x.shape[1]))]:
        turn = rotation(torch.arange(begin, end), SHARED, ours.rope_theta or 1.0, x.dtype)
        found.append(ours(x[:, begin:end], Context(turn, cache=cache)))
    return torch.cat(found, 1)


@pytest.mark.parametrize("query_rank", [None, 10])
@pytest.mark.parametrize("pairs", [False, True])
def test_latent_attention_with_positions(query_rank: int | None, pairs: bool) -> None:
    config = DeepseekV3Config(**COMMON, q_lora_rank=query_rank, rope_interleave=pairs)
    theirs = DeepseekV3Attention(config, 0)
    stir(theirs)
    x = torch.randn(2, 9, WIDTH, generator=torch.Generator().manual_seed(1))
    turn = DeepseekV3RotaryEmbedding(config)(x, torch.arange(9)[None])
    expected, _ = theirs(x, position_embeddings=turn, attention_mask=causal(9))
    ours = copied(theirs, 10_000.0, pairs)
    assert_close(ours(x), expected)
    assert_close(cached(ours, x), expected)


def test_latent_attention_without_positions() -> None:
    theirs = KimiLinearAttention(KimiLinearConfig(**COMMON), 0)
    stir(theirs)
    x = torch.randn(2, 9, WIDTH, generator=torch.Generator().manual_seed(1))
    expected, _ = theirs(x, attention_mask=causal(9))
    ours = copied(theirs, None, False)
    assert_close(ours(x), expected)
    assert_close(cached(ours, x), expected)


@pytest.mark.parametrize("kind", ["kimi", "deepseek"])
def test_experts(kind: str) -> None:
    groups = {"groups": 4, "chosen_groups": 2} if kind == "deepseek" else {}
    if kind == "kimi":
        theirs = KimiLinearMoE(KimiLinearConfig(**COMMON, num_local_experts=EXPERTS))
    else:
        theirs = DeepseekV3MoE(DeepseekV3Config(**COMMON, n_routed_experts=EXPERTS, n_group=4, topk_group=2))
    stir(theirs)
    weights = theirs.state_dict()
    gate, up = weights["experts.gate_up_proj"].chunk(2, dim=1)
    ours = MixtureOfExperts(WIDTH, HIDDEN, EXPERTS, 3, scale=2.446, **groups)
    ours.load_state_dict({
        "router.matrix.weight": weights["gate.weight"],
        "router.bias": weights["gate.e_score_correction_bias"],
        "gate.weight": gate,
        "up.weight": up,
        "output.weight": weights["experts.down_proj"],
        "shared.gate.weight": weights["shared_experts.gate_proj.weight"],
        "shared.up.weight": weights["shared_experts.up_proj.weight"],
        "shared.output.weight": weights["shared_experts.down_proj.weight"],
    })  # fmt: skip
    x = torch.randn(3, 7, WIDTH, generator=torch.Generator().manual_seed(1))
    assert_close(ours(x), theirs(x))
    _, their_weights, their_experts = theirs.gate(x)
    routing = ours.router(x.flatten(0, 1))
    assert torch.equal(routing.experts.sort(-1).values, their_experts.sort(-1).values)
    assert_close(routing.weights.sort(-1).values, their_weights.sort(-1).values)
