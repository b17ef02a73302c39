"""A tiny `transformer` of flash-linear-attention without the package: its config, names, and forward by hand."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

VOCABULARY, WIDTH, HEADS, KV_HEADS, MLP, EPS, THETA = 11, 12, 3, 1, 7, 1e-5, 500.0
HEAD = WIDTH // HEADS


def fla_config(layers: int, block: int | None, **changes: Any) -> dict[str, Any]:
    """As its `save_pretrained` writes it."""
    return {
        "architectures": ["TransformerForCausalLM"],
        "model_type": "transformer",
        "attnres_block_size": block,
        "elementwise_affine": True,
        "fuse_norm": True,
        "fuse_swiglu": True,
        "hidden_act": "swish",
        "hidden_ratio": 4,
        "hidden_size": WIDTH,
        "intermediate_size": MLP,
        "max_position_embeddings": 64,
        "norm_eps": EPS,
        "num_heads": HEADS,
        "num_hidden_layers": layers,
        "num_kv_heads": KV_HEADS,
        "qk_norm": True,
        "qkv_bias": False,
        "rope_theta": THETA,
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": VOCABULARY,
        "window_size": None,
        **changes,
    }


def fla_shapes(layers: int, depth: bool, tied: bool = False) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "model.embeddings.weight": (VOCABULARY, WIDTH),
        "model.norm.weight": (WIDTH,),
        **({} if tied else {"lm_head.weight": (VOCABULARY, WIDTH)}),
        **({"model.res_norm.weight": (WIDTH,), "model.res_proj.weight": (1, WIDTH)} if depth else {}),
    }
    layer = {
        "attn_norm": (WIDTH,),
        "mlp_norm": (WIDTH,),
        "attn.q_proj": (WIDTH, WIDTH),
        "attn.k_proj": (KV_HEADS * HEAD, WIDTH),
        "attn.v_proj": (KV_HEADS * HEAD, WIDTH),
        "attn.o_proj": (WIDTH, WIDTH),
        "attn.q_norm": (HEAD,),
        "attn.k_norm": (HEAD,),
        "mlp.gate_proj": (MLP, WIDTH),
        "mlp.up_proj": (MLP, WIDTH),
        "mlp.down_proj": (WIDTH, MLP),
    }
    if depth:
        for kind in ("attn", "mlp"):
            layer |= {f"{kind}_res_norm": (WIDTH,), f"{kind}_res_proj": (1, WIDTH)}
    for i in range(layers):
        shapes |= {f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()}
    return shapes


def fla_tensors(layers: int, depth: bool, tied: bool = False, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, shape in fla_shapes(layers, depth, tied).items():
        drawn = torch.randn(shape, generator=generator)
        if "norm" in name:
            drawn = 1 + drawn / 4
        elif "_proj" in name and "res" not in name:
            drawn = drawn * shape[-1] ** -0.5
        found[name] = drawn.to(dtype)
    return found


def fla_logits(tensors: dict[str, Tensor], tokens: Tensor, layers: int, block: int | None) -> Tensor:
    """In float64, line by line: sublayer 2i or 2i + 1 opens a block where its number is a multiple of `block`."""
    w = {name.removesuffix(".weight"): tensor.double() for name, tensor in tensors.items()}
    prefix: Any = w["model.embeddings"][tokens]
    states: list[Tensor] = []
    for number in range(2 * layers):
        kind = ("attn", "mlp")[number % 2]
        layer = f"model.layers.{number // 2}."
        x = prefix
        if block is not None:
            x = _read([*states, prefix], w, f"{layer}{kind}_res") if states else prefix
            if number % block == 0:
                states, prefix = [*states, prefix], 0
        x = _rms(x, w[f"{layer}{kind}_norm"])
        prefix = prefix + (_mlp(w, layer + "mlp.", x) if number % 2 else _attention(w, layer + "attn.", x))
    if block is not None:
        prefix = _read([*states, prefix], w, "model.res")
    return _rms(prefix, w["model.norm"]) @ w.get("lm_head", w["model.embeddings"]).T


def _rms(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / (x.square().mean(-1, keepdim=True) + EPS).sqrt()


def _read(sources: list[Tensor], w: dict[str, Tensor], name: str) -> Tensor:
    scores = torch.stack([_rms(source, w[f"{name}_norm"]) @ w[f"{name}_proj"][0] for source in sources])
    return torch.einsum("nbt,nbtd->btd", scores.softmax(0), torch.stack(sources))


def _mlp(w: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    return (F.silu(x @ w[prefix + "gate_proj"].T) * (x @ w[prefix + "up_proj"].T)) @ w[prefix + "down_proj"].T


def _attention(w: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    query, key, value = ((x @ w[f"{prefix}{n}_proj"].T).unflatten(-1, (-1, HEAD)) for n in "qkv")
    query, key = (_turned(_rms(t, w[f"{prefix}{n}_norm"])) for t, n in ((query, "q"), (key, "k")))
    key, value = (t.repeat_interleave(HEADS // KV_HEADS, 2) for t in (key, value))
    scores = torch.einsum("bqhd,bkhd->bhqk", query, key) * HEAD**-0.5
    future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, -torch.inf).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, value).flatten(-2) @ w[prefix + "o_proj"].T


def _turned(x: Tensor) -> Tensor:
    """Feature j of a head and feature j + half turn together, by position times theta^(-j / half)."""
    half = HEAD // 2
    angle = torch.outer(torch.arange(x.shape[1]).double(), THETA ** (-torch.arange(half).double() / half))[:, None, :]
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), -1)
