"""Kimi Linear with the depth attention of Kimi K3, straight from the tensors of a checkpoint and line by line.

Nothing of the library is used. Float64, one token after another where there is a state, no cache.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from . import support as s

Weights = dict[str, Tensor]
LATENT_EPS = 1e-6


@dataclass
class Walk:
    """What a forward went through: after each layer its prefix and blocks, and the inputs of its two norms."""

    prefixes: list[Tensor] = field(default_factory=list)
    blocks: list[list[Tensor]] = field(default_factory=list)
    reads: list[Tensor] = field(default_factory=list)
    output: Tensor = field(default_factory=lambda: torch.empty(0))
    logits: Tensor = field(default_factory=lambda: torch.empty(0))


def run(tensors: Weights, tokens: Tensor, layers: int, block: int | None) -> Walk:
    """`block` layers are a block; None: the standard residual."""
    w = {name: tensor.double() for name, tensor in tensors.items()}
    walk, blocks = Walk(), []
    prefix: Tensor | None = w["model.embed_tokens.weight"][tokens]
    for i in range(layers):
        layer = part(w, f"model.layers.{i}.")
        read = prefix
        if block is not None and blocks:
            read = depth_read(blocks, prefix, layer, "self_attention_res")
        if block is not None and i % block == 0:
            blocks, prefix = [*blocks, prefix], None
        walk.reads.append(read)
        mixer = latent_attention if s.is_latent(i) else delta_attention
        output = mixer(part(layer, "self_attn."), rms(read, layer["input_layernorm.weight"], s.EPS))
        prefix = output if prefix is None else prefix + output
        read = prefix if block is None else depth_read(blocks, prefix, layer, "mlp_res")
        walk.reads.append(read)
        normed = rms(read, layer["post_attention_layernorm.weight"], s.EPS)
        moe = part(layer, "block_sparse_moe.")
        prefix = prefix + (mixture(moe, normed) if moe else gated(part(layer, "mlp."), normed))
        walk.prefixes.append(prefix)
        walk.blocks.append(blocks)
    assert prefix is not None
    model = part(w, "model.")
    walk.output = prefix if block is None else depth_read(blocks, prefix, model, "output_attn_res")
    walk.logits = rms(walk.output, model["norm.weight"], s.EPS) @ w["lm_head.weight"].T
    return walk


def part(w: Weights, prefix: str) -> Weights:
    return {name.removeprefix(prefix): tensor for name, tensor in w.items() if name.startswith(prefix)}


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def depth_read(blocks: list[Tensor], prefix: Tensor | None, w: Weights, name: str) -> Tensor:
    assert prefix is not None
    candidates = torch.stack([*blocks, prefix], -2)
    inverse = (candidates.square().mean(-1, keepdim=True) + s.EPS).rsqrt()
    scores = (candidates * inverse * (w[f"{name}_norm.weight"] * w[f"{name}_proj.weight"][0])).sum(-1)
    return (scores.softmax(-1).unsqueeze(-1) * candidates).sum(-2)


def heads_of(x: Tensor) -> Tensor:
    return x.unflatten(-1, (s.HEADS, -1))


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    padded = F.pad(x.mT, (s.KERNEL - 1, 0))
    return F.silu(F.conv1d(padded, weight, groups=x.shape[-1])).mT


def unit(x: Tensor) -> Tensor:
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def delta_attention(w: Weights, x: Tensor) -> Tensor:
    query, key, value = (heads_of(convolved(x @ w[f"{n}_proj.weight"].T, w[f"{n}_conv1d.weight"])) for n in "qkv")
    query, key = unit(query) * s.HEAD_DIM**-0.5, unit(key)
    step = F.softplus(x @ w["f_a_proj.weight"].T @ w["f_b_proj.weight"].T + w["dt_bias"])
    kept = (-w["A_log"].exp() * heads_of(step)).exp()
    beta = (x @ w["b_proj.weight"].T).sigmoid()
    memory = x.new_zeros(len(x), s.HEADS, s.HEAD_DIM, s.HEAD_DIM)
    found = []
    for t in range(x.shape[1]):
        memory = memory * kept[:, t].unsqueeze(-1)
        error = value[:, t] - torch.einsum("bhk,bhkv->bhv", key[:, t], memory)
        memory = memory + torch.einsum("bhk,bhv->bhkv", key[:, t], beta[:, t].unsqueeze(-1) * error)
        found.append(torch.einsum("bhk,bhkv->bhv", query[:, t], memory))
    gate = heads_of(x @ w["g_a_proj.weight"].T @ w["g_b_proj.weight"].T).sigmoid()
    return (rms(torch.stack(found, 1), w["o_norm.weight"], s.EPS) * gate).flatten(-2) @ w["o_proj.weight"].T


def latent_attention(w: Weights, x: Tensor) -> Tensor:
    query = heads_of(x @ w["q_proj.weight"].T)
    latent, shared = (x @ w["kv_a_proj_with_mqa.weight"].T).split((s.RANK, s.SHARED), -1)
    both = heads_of(rms(latent, w["kv_a_layernorm.weight"], LATENT_EPS) @ w["kv_b_proj.weight"].T)
    key = torch.cat((both[..., : s.OWN], shared.unsqueeze(-2).expand(-1, -1, s.HEADS, -1)), -1)
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * (s.OWN + s.SHARED) ** -0.5
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, both[..., s.OWN :]).flatten(-2) @ w["o_proj.weight"].T


def gated(w: Weights, x: Tensor, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")) -> Tensor:
    gate, up, down = (w[f"{name}.weight"] for name in names)
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T


def mixture(w: Weights, x: Tensor) -> Tensor:
    scores = (x @ w["gate.weight"].T).sigmoid()
    chosen = (scores + w["gate.e_score_correction_bias"]).topk(s.CHOSEN, -1).indices
    weights = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
    weights = weights / weights.sum(-1, keepdim=True) * 2.446
    total = gated(part(w, "shared_experts."), x)
    for e in range(s.EXPERTS):
        total = total + weights[..., e, None] * gated(part(w, f"experts.{e}."), x, ("w1", "w3", "w2"))
    return total
