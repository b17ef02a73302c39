"""Kimi Linear and Kimi K3: names of tensors, as in `modeling_kimi.py` beside the published weights, where depth
attention is that of K3, and as in the `kimi_linear` of transformers, which writes the former and computes with its own.
"""

from typing import Final

from attention_residuals.dialects.depth import DepthDialect
from attention_residuals.dialects.dialect import Dialect
from attention_residuals.dialects.kimi_config import BLOCK, from_kimi, is_kimi, to_kimi
from attention_residuals.dialects.layouts import Joined, JoinedByHead, Stacked, Viewed
from attention_residuals.dialects.names import WRAPPERS, Names, Rule, Table, Use, one
from attention_residuals.models import BackboneConfig, Experts, Gated, KimiDelta, Latent

ROW = Viewed((1, -1))
LAYER = "model.layers.{layer}."


def _whole(config: BackboneConfig) -> Table:
    # With tied embeddings there is one tensor, and some readers want it under both names.
    head = (
        one("embedding.weight", "lm_head.weight", use=Use.COPY)
        if config.tied_embeddings
        else one("head.weight", "lm_head.weight")
    )
    return one("embedding.weight", "model.embed_tokens.weight"), one("norm.weight", "model.norm.weight"), head


LAYERS: Final = (
    one("stream.pre_norms.{mixer}", LAYER + "input_layernorm.weight"),
    one("stream.pre_norms.{channels}", LAYER + "post_attention_layernorm.weight"),
)

DEPTH: Final = (
    # The first read has one source: its pair is in every file and is never used.
    one("stream.key_norms.{mixer}", LAYER + "self_attention_res_norm.weight", unused=1.0),
    one("stream.queries.{mixer}", LAYER + "self_attention_res_proj.weight", ROW, unused=0.0),
    one("stream.key_norms.{channels}", LAYER + "mlp_res_norm.weight"),
    one("stream.queries.{channels}", LAYER + "mlp_res_proj.weight", ROW),
    one("stream.key_norms.output", "model.output_attn_res_norm.weight"),
    one("stream.queries.output", "model.output_attn_res_proj.weight", ROW),
)
"""4L + 2 tensors for L layers."""

CONVOLUTIONS: Final = ("query_convolution.weight", "key_convolution.weight", "value_convolution.weight")

DELTA: Final = (
    one("query.weight", "q_proj.weight"),
    one("key.weight", "k_proj.weight"),
    one("value.weight", "v_proj.weight"),
    one("query_convolution.weight", "q_conv1d.weight"),
    one("key_convolution.weight", "k_conv1d.weight"),
    one("value_convolution.weight", "v_conv1d.weight"),
    Rule(CONVOLUTIONS, ("conv1d.weight",), Joined(), Use.READ),
    *(
        rule
        for prefix, use in (("", Use.NORMAL), ("forget_gate.", Use.READ))
        for rule in (
            one("decay.down.weight", prefix + "f_a_proj.weight", use=use),
            one("decay.up.weight", prefix + "f_b_proj.weight", use=use),
            one("decay.dt_bias", prefix + "dt_bias", use=use),
            one("decay.A_log", prefix + "A_log", Viewed((1, 1, -1, 1)), use=use),
        )
    ),
    one("beta.weight", "b_proj.weight"),
    one("gate_down.weight", "g_a_proj.weight"),
    one("gate_up.weight", "g_b_proj.weight"),
    one("output_norm.weight", "o_norm.weight"),
    one("output.weight", "o_proj.weight"),
)


def _latent(latent: Latent) -> Table:
    queries = (
        (one("query.weight", "q_proj.weight"),)
        if latent.query_rank is None
        else (
            one("query_latent.weight", "q_a_proj.weight"),
            one("query_norm.weight", "q_a_layernorm.weight"),
            one("query.weight", "q_b_proj.weight"),
        )
    )
    shared = ("shared_key.weight",) if latent.shared_dim else ()
    return (
        *queries,
        Rule(("latent.weight", *shared), ("kv_a_proj_with_mqa.weight",), Joined()),
        one("latent_norm.weight", "kv_a_layernorm.weight"),
        Rule(("key.weight", "value.weight"), ("kv_b_proj.weight",), JoinedByHead(latent.heads)),
        one("output.weight", "o_proj.weight"),
    )


GATED: Final = (("gate", "gate_proj"), ("up", "up_proj"), ("output", "down_proj"))
"""The three matrices of an MLP."""

CHOSEN: Final = (("gate", "w1"), ("up", "w3"), ("output", "w2"))
"""Those of an expert."""

MIXTURE: Final = ("block_sparse_moe.", "mlp.")
"""Where a mixture of experts is, published and in transformers."""


def _gated(gated: Gated) -> Table:
    # transformers 5 saves a dense MLP under the name of the experts.
    return tuple(
        one(f"{ours}.weight", f"{prefix}{theirs}.weight", use=use)
        for prefix, use in (("mlp.", Use.NORMAL), ("block_sparse_moe.", Use.READ))
        for ours, theirs in GATED
    )


def _experts(experts: Experts) -> Table:
    rules = []
    for prefix, use in zip(MIXTURE, (Use.NORMAL, Use.READ), strict=True):
        for ours, theirs in CHOSEN:
            each = tuple(f"{prefix}experts.{e}.{theirs}.weight" for e in range(experts.experts))
            rules.append(Rule((f"{ours}.weight",), each, Stacked(), use))
        rules += [
            one("router.matrix.weight", f"{prefix}gate.weight", use=use),
            one("router.bias", f"{prefix}gate.e_score_correction_bias", use=use),
        ]
        if experts.shared:
            rules += [
                one(f"shared.{ours}.weight", f"{prefix}shared_experts.{theirs}.weight", use=use)
                for ours, theirs in GATED
            ]
    in_memory = Rule(("gate.weight", "up.weight"), ("mlp.experts.gate_up_proj",), Joined(1), Use.READ)
    return *rules, in_memory, one("output.weight", "mlp.experts.down_proj", use=Use.READ)


NAMES: Final = Names(
    whole=_whole,
    layers=LAYERS,
    depth=DEPTH,
    mixers={KimiDelta: lambda _: DELTA, Latent: _latent},
    channels={Gated: _gated, Experts: _experts},
    mixer_prefix=LAYER + "self_attn.",
    channels_prefix=LAYER,
    wrappers=WRAPPERS | {"language_model"},
)

KIMI: Final = Dialect(
    "kimi", "Kimi Linear, Kimi K3 and kimi_linear of transformers", is_kimi, from_kimi, to_kimi, NAMES
)

KIMI_DEPTH: Final = DepthDialect("kimi", KIMI.summary, BLOCK, DEPTH, wrappers=NAMES.wrappers)
