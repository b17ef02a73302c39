"""flash-linear-attention's `transformer` (0.6.0): names of tensors, and its config as one of ours and back."""

from typing import Any, Final

from attention_residuals.dialects.block_keys import BlockKey, require_one_eps
from attention_residuals.dialects.depth import DepthDialect, SizeKeys
from attention_residuals.dialects.dialect import Dialect, Plain
from attention_residuals.dialects.layouts import Viewed
from attention_residuals.dialects.names import Names, Table, Use, one
from attention_residuals.dialects.plain import count, only, optional_count, positive, require_neutral
from attention_residuals.errors import InputError
from attention_residuals.models import SUBLAYERS_PER_LAYER, BackboneConfig, DecoderConfig, Gated, GroupedQuery

MODEL_TYPE: Final = "transformer"
BLOCK: Final = BlockKey("attnres_block_size", "fla")
NEUTRAL: Final[dict[str, tuple[Any, ...]]] = {
    "qkv_bias": (False,),
    "window_size": (),
    "hidden_act": ("swish",),
    "elementwise_affine": (True,),
}
"""Keys that change what is computed, and the values with which it is what our sublayers compute."""

QK_EPS: Final = 1e-5
"""Eps of its norms on queries and keys, whatever `norm_eps` is."""

ROW = Viewed((1, -1))
LAYER = "model.layers.{layer}."


def _whole(config: BackboneConfig) -> Table:
    # Its `save_pretrained` leaves the second name of a tied tensor out, and its loader may have it.
    head = (
        one("embedding.weight", "lm_head.weight", use=Use.COPY)
        if config.tied_embeddings
        else one("head.weight", "lm_head.weight")
    )
    return one("embedding.weight", "model.embeddings.weight"), one("norm.weight", "model.norm.weight"), head


LAYERS: Final = (
    one("stream.pre_norms.{mixer}", LAYER + "attn_norm.weight"),
    one("stream.pre_norms.{channels}", LAYER + "mlp_norm.weight"),
)

DEPTH: Final = (
    # The first read has one source: its pair is in every file and is never used.
    one("stream.key_norms.{mixer}", LAYER + "attn_res_norm.weight", unused=1.0),
    one("stream.queries.{mixer}", LAYER + "attn_res_proj.weight", ROW, unused=0.0),
    one("stream.key_norms.{channels}", LAYER + "mlp_res_norm.weight"),
    one("stream.queries.{channels}", LAYER + "mlp_res_proj.weight", ROW),
    one("stream.key_norms.output", "model.res_norm.weight"),
    one("stream.queries.output", "model.res_proj.weight", ROW),
)
"""4L + 2 tensors for L layers."""


def _attention(attention: GroupedQuery) -> Table:
    names = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
    if attention.qk_norm:
        names |= {"query_norm": "q_norm", "key_norm": "k_norm"}
    return tuple(one(f"{ours}.weight", f"attn.{theirs}.weight") for ours, theirs in names.items())


GATED: Final = tuple(
    one(f"{ours}.weight", f"mlp.{theirs}.weight")
    for ours, theirs in (("gate", "gate_proj"), ("up", "up_proj"), ("output", "down_proj"))
)

NAMES: Final = Names(
    whole=_whole,
    layers=LAYERS,
    depth=DEPTH,
    mixers={GroupedQuery: _attention},
    channels={Gated: lambda _: GATED},
    mixer_prefix=LAYER,
    channels_prefix=LAYER,
)


def _owns(plain: Plain) -> bool:
    return plain.get("model_type") == MODEL_TYPE


def _from_plain(plain: Plain) -> DecoderConfig:
    if not _owns(plain):
        raise InputError(f"model_type is {plain.get('model_type')!r}; fla names are read from {MODEL_TYPE}")
    require_neutral(plain, NEUTRAL)
    BLOCK.refuse_others(plain)
    layers, width, heads = count(plain, "num_hidden_layers"), count(plain, "hidden_size"), count(plain, "num_heads")
    eps, qk_norm = positive(plain, "norm_eps"), bool(plain.get("qk_norm"))
    if width % heads:
        raise InputError(f"num_heads is {heads}, which does not divide hidden_size {width}; bring back the config")
    _require_one_qk_eps(qk_norm, eps)
    return DecoderConfig(
        vocab_size=count(plain, "vocab_size"),
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=optional_count(plain, "num_kv_heads") or heads,
        head_dim=width // heads,
        mlp_width=optional_count(plain, "intermediate_size") or _mlp_width(plain, width),
        residual=BLOCK.read(plain.get(BLOCK.name), layers, eps),
        rope_theta=positive(plain, "rope_theta"),
        norm_eps=eps,
        qk_norm=qk_norm,
        tied_embeddings=bool(plain.get("tie_word_embeddings")),
    )


def _mlp_width(plain: Plain, width: int) -> int:
    """What it derives where no size is written: 2/3 of `hidden_ratio` times the width, up to a multiple of 256."""
    ratio = optional_count(plain, "hidden_ratio") or 4
    return 256 * -(-int(width * ratio * 2 / 3) // 256)


def _to_plain(config: BackboneConfig, dtype: str) -> dict[str, Any]:
    layers = [config.layer(i) for i in range(config.sublayers // SUBLAYERS_PER_LAYER)]
    foreign = [one for one in (part for pair in layers for part in pair) if not isinstance(one, GroupedQuery | Gated)]
    if foreign:
        raise InputError(
            f"fla names know GroupedQuery and Gated, and a layer has {foreign[0]}; build the model of those"
        )
    attention, mlp = only([mixer for mixer, _ in layers], GroupedQuery), only([mlp for _, mlp in layers], Gated)
    assert attention is not None and mlp is not None
    if attention.heads * attention.head_dim != config.width:
        raise InputError(
            f"{attention.heads} heads of {attention.head_dim} features are not the width {config.width}; under fla "
            "names they must be"
        )
    require_one_eps(BLOCK.names, config)
    _require_one_qk_eps(attention.qk_norm, config.norm_eps)
    return {
        "architectures": ["TransformerForCausalLM"],
        "model_type": MODEL_TYPE,
        "dtype": dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.width,
        "num_hidden_layers": len(layers),
        "num_heads": attention.heads,
        "num_kv_heads": attention.kv_heads,
        "qkv_bias": False,
        "qk_norm": attention.qk_norm,
        "window_size": None,
        "rope_theta": attention.rope_theta,
        "intermediate_size": mlp.hidden,
        "hidden_act": "swish",
        "norm_eps": config.norm_eps,
        "tie_word_embeddings": config.tied_embeddings,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
        BLOCK.name: BLOCK.write(config.residual, config.sublayers),
    }


def _require_one_qk_eps(qk_norm: bool, eps: float) -> None:
    if qk_norm and eps != QK_EPS:
        raise InputError(
            f"qk_norm is on and norm_eps is {eps}: under fla names queries and keys are normed with eps {QK_EPS}, and "
            f"here with norm_eps; only a model with norm_eps={QK_EPS} is the same in both"
        )


FLA: Final = Dialect("fla", "transformer of flash-linear-attention", _owns, _from_plain, _to_plain, NAMES)

FLA_DEPTH: Final = DepthDialect("fla", FLA.summary, BLOCK, DEPTH, SizeKeys(eps="norm_eps"))
