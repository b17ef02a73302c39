"""The `config.json` of Kimi Linear and Kimi K3 as a config of ours, and back.

Keys are those of the published files; where transformers has another one for the same thing, both are understood, and
they must agree.
"""

from collections.abc import Sequence
from typing import Any, Final

from attention_residuals.dialects.block_keys import BlockKey, require_one_eps
from attention_residuals.dialects.dialect import Plain
from attention_residuals.dialects.plain import (
    count,
    either,
    only,
    optional_count,
    optional_whole,
    positive,
    require_neutral,
    same_at_both_levels,
)
from attention_residuals.errors import InputError
from attention_residuals.models import (
    BackboneConfig,
    ChannelMixerConfig,
    Experts,
    Gated,
    HybridConfig,
    KimiDelta,
    Latent,
    TokenMixerConfig,
)
from attention_residuals.models.kimi_linear import LATENT_EPS

BLOCK: Final = BlockKey("attn_res_block_size", "Kimi")
MODEL_TYPES: Final = ("kimi_linear", "kimi_k3")
NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "mla_use_nope": (True,),
    "mla_use_output_gate": (False,),
    "moe_router_activation_func": ("sigmoid",),
    "moe_renormalize": (True,),
    "norm_topk_prob": (True,),
    "routed_expert_hidden_size": (),
    "latent_moe_use_norm": (False,),
    "num_nextn_predict_layers": (0,),
    "quantization_config": (),
}
"""Keys that change what is computed, and the values with which it is what our sublayers compute. Absent and null are
always among these."""

NEUTRAL_DELTA: Final[dict[str, tuple[Any, ...]]] = {"use_full_rank_gate": (False,), "gate_lower_bound": ()}
"""The same, inside `linear_attn_config`."""

DELTA_KINDS: Final = {"linear_attention": True, "full_attention": False}
EXPERT_KINDS: Final = {"sparse": True, "dense": False}


def is_kimi(plain: Plain) -> bool:
    """By its `model_type`, or that of the text model inside."""
    return plain.get("model_type") in MODEL_TYPES or _text(plain).get("model_type") in MODEL_TYPES


def from_kimi(plain: Plain) -> HybridConfig:
    """The model that a `config.json` is of; that of Kimi K3 keeps its text model in `text_config`.

    Raises:
        InputError: a key that is missing, of no sense, at odds with another one, or that asks for what our sublayers do
            not compute, such as the gated latent attention of Kimi K3.
    """
    if not is_kimi(plain):
        raise InputError(
            f"model_type is {plain.get('model_type')!r}; Kimi names are read from {', '.join(MODEL_TYPES)}"
        )
    text = _text(plain)
    require_neutral(text, NEUTRAL)
    layers = count(text, "num_hidden_layers")
    eps = positive(text, "rms_norm_eps")
    BLOCK.refuse_others(plain, text)
    delta_layers, expert_layers = _delta_layers(text, layers), _expert_layers(text, layers)
    return HybridConfig(
        vocab_size=count(text, "vocab_size"),
        width=count(text, "hidden_size"),
        mixers=_chosen(delta_layers, lambda: _delta(text), lambda: _latent(text)),
        channels=_chosen(expert_layers, lambda: _experts(text), lambda: Gated(count(text, "intermediate_size"))),
        residual=BLOCK.read(same_at_both_levels(plain, text, BLOCK.name), layers, eps),
        norm_eps=eps,
        tied_embeddings=bool(same_at_both_levels(plain, text, "tie_word_embeddings")),
    )


def to_kimi(config: BackboneConfig, dtype: str) -> dict[str, Any]:
    """The `config.json` of a model, understood by the published code and by transformers.

    Raises:
        InputError: a model that these keys cannot tell, for example one with grouped-query attention, with two sizes of
            experts, or with depth attention over blocks of single sublayers.
    """
    layers = [config.layer(i) for i in range(config.sublayers // 2)]
    mixers, channels = [mixer for mixer, _ in layers], [channel for _, channel in layers]
    block = BLOCK.write(config.residual, config.sublayers)
    require_one_eps(BLOCK.names, config)
    return {
        "architectures": ["KimiLinearForCausalLM"],
        "model_type": "kimi_linear",
        "dtype": dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": len(layers),
        "rms_norm_eps": config.norm_eps,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tied_embeddings,
        # Those of the 48B are no tokens of a smaller vocabulary.
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        **_mixer_keys(mixers, config.norm_eps),
        **_channel_keys(channels),
        **({} if block is None else {BLOCK.name: block}),
    }


def _text(plain: Plain) -> Plain:
    text = plain.get("text_config")
    return text if isinstance(text, dict) else plain


def _chosen(which: Sequence[bool], one: Any, other: Any) -> tuple[Any, ...]:
    """One kind of sublayer or the other for each layer, each made only where there are such layers."""
    made = {kind: make() for kind, make in ((True, one), (False, other)) if kind in which}
    return tuple(made[kind] for kind in which)


def _delta_layers(text: Plain, layers: int) -> list[bool]:
    linear = text.get("linear_attn_config") or {}
    listed = _from_numbers(linear, layers) if "kda_layers" in linear or "full_attn_layers" in linear else None
    named = _from_kinds(text, "layer_types", DELTA_KINDS, layers)
    return either("linear_attn_config", listed, "layer_types", named)


def _from_numbers(linear: Plain, layers: int) -> list[bool]:
    delta, full = linear.get("kda_layers") or [], linear.get("full_attn_layers") or []
    if sorted([*delta, *full]) != list(range(1, layers + 1)):
        raise InputError(
            f"kda_layers {delta} and full_attn_layers {full} do not name each of {layers} layers once, from 1 on; "
            "bring back the config that was saved"
        )
    return [layer in delta for layer in range(1, layers + 1)]


def _from_kinds(text: Plain, key: str, kinds: dict[str, bool], layers: int) -> list[bool] | None:
    names = text.get(key)
    if names is None:
        return None
    if len(names) != layers or any(name not in kinds for name in names):
        raise InputError(f"{key} is {names}; it must be {' or '.join(kinds)} for each of {layers} layers")
    return [kinds[name] for name in names]


def _expert_layers(text: Plain, layers: int) -> list[bool]:
    named = _from_kinds(text, "mlp_layer_types", EXPERT_KINDS, layers)
    if either("num_experts", text.get("num_experts"), "num_local_experts", text.get("num_local_experts"), None) is None:
        return either("no experts", [False] * layers, "mlp_layer_types", named)
    first, every = optional_whole(text, "first_k_dense_replace"), optional_count(text, "moe_layer_freq") or 1
    counted = None if first is None else [i >= first and i % every == 0 for i in range(layers)]
    return either("first_k_dense_replace", counted, "mlp_layer_types", named)


def _delta(text: Plain) -> KimiDelta:
    linear = text.get("linear_attn_config") or {}
    require_neutral(linear, NEUTRAL_DELTA)
    inner = ("num_heads", "head_dim", "short_conv_kernel_size")
    outer = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    heads, head_dim, kernel = (
        either(one, optional_count(linear, one), other, optional_count(text, other))
        for one, other in zip(inner, outer, strict=True)
    )
    return KimiDelta(heads, head_dim, kernel)


def _latent(text: Plain) -> Latent:
    heads = count(text, "num_attention_heads")
    if optional_count(text, "num_key_value_heads") not in (None, heads):
        raise InputError(
            f"num_key_value_heads is {text['num_key_value_heads']} and num_attention_heads {heads}: latent attention "
            "has keys and values for every head; make them equal"
        )
    return Latent(
        heads=heads,
        kv_rank=count(text, "kv_lora_rank"),
        head_dim=count(text, "qk_nope_head_dim"),
        shared_dim=optional_whole(text, "qk_rope_head_dim") or 0,
        value_dim=count(text, "v_head_dim"),
        query_rank=optional_count(text, "q_lora_rank"),
        latent_eps=LATENT_EPS,
    )


def _experts(text: Plain) -> Experts:
    def size(one: str, other: str, default: int | None = None) -> int:
        return either(one, optional_count(text, one), other, optional_count(text, other), default)

    one, other = "num_shared_experts", "n_shared_experts"
    shared = either(one, optional_whole(text, one), other, optional_whole(text, other), 0)
    return Experts(
        hidden=count(text, "moe_intermediate_size"),
        experts=size("num_experts", "num_local_experts"),
        top_k=size("num_experts_per_token", "num_experts_per_tok"),
        shared=shared,
        scale=positive(text, "routed_scaling_factor"),
        groups=size("num_expert_group", "n_group", 1),
        chosen_groups=optional_count(text, "topk_group") or 1,
    )


def _mixer_keys(mixers: list[TokenMixerConfig], eps: float) -> dict[str, Any]:
    delta, latent = only(mixers, KimiDelta), only(mixers, Latent)
    if foreign := [mixer for mixer in mixers if not isinstance(mixer, KimiDelta | Latent)]:
        raise InputError(
            f"Kimi names know KimiDelta and Latent, and a layer has {foreign[0]}; build the model of those"
        )
    linear = {
        "kda_layers": [i + 1 for i, mixer in enumerate(mixers) if isinstance(mixer, KimiDelta)],
        "full_attn_layers": [i + 1 for i, mixer in enumerate(mixers) if isinstance(mixer, Latent)],
    }
    if delta is not None:
        sizes = {"num_heads": delta.heads, "head_dim": delta.head_dim, "short_conv_kernel_size": delta.kernel}
        linear |= sizes  # pyright: ignore[reportArgumentType]
    heads = latent.heads if latent is not None else delta.heads if delta is not None else 1
    keys = {"linear_attn_config": linear, "num_attention_heads": heads, "num_key_value_heads": heads}
    return keys if latent is None else keys | _latent_keys(latent, eps)


def _latent_keys(latent: Latent, eps: float) -> dict[str, Any]:
    if latent.rope_theta is not None:
        raise InputError(
            f"rope_theta is {latent.rope_theta}, and latent attention under Kimi names has no positions; only a model "
            "that was trained with rope_theta=None can be written so"
        )
    found = eps if latent.latent_eps is None else latent.latent_eps
    if found != LATENT_EPS:
        raise InputError(
            f"the latents are normed with eps {found}, and under Kimi names with {LATENT_EPS}; build the model with "
            f"latent_eps={LATENT_EPS}"
        )
    return {
        "kv_lora_rank": latent.kv_rank,
        "q_lora_rank": latent.query_rank,
        "qk_nope_head_dim": latent.head_dim,
        "qk_rope_head_dim": latent.shared_dim,
        "v_head_dim": latent.value_dim,
        "mla_use_nope": True,
    }


def _channel_keys(channels: list[ChannelMixerConfig]) -> dict[str, Any]:
    gated, experts = only(channels, Gated), only(channels, Experts)
    which = [isinstance(channel, Experts) for channel in channels]
    keys: dict[str, Any] = {"mlp_layer_types": ["sparse" if one else "dense" for one in which]}
    if gated is not None:
        keys["intermediate_size"] = gated.hidden
    return keys if experts is None else keys | _expert_keys(experts, which)


def _expert_keys(experts: Experts, which: list[bool]) -> dict[str, Any]:
    first = which.index(True)
    rest = [i for i, one in enumerate(which) if one]
    # The published code knows no list: a first layer and a distance have to tell the same.
    for every in range(1, len(which) + 1):
        if rest == [i for i in range(first, len(which)) if i % every == 0]:
            break
    else:
        raise InputError(
            f"layers {rest} have experts, 0-based, and Kimi names know every n-th from one layer on; build the model so"
        )
    return {
        "num_experts": experts.experts,
        "num_experts_per_token": experts.top_k,
        "num_shared_experts": experts.shared,
        "moe_intermediate_size": experts.hidden,
        "routed_scaling_factor": experts.scale,
        "num_expert_group": experts.groups,
        "topk_group": experts.chosen_groups,
        "use_grouped_topk": True,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "first_k_dense_replace": first,
        "moe_layer_freq": every,
    }
