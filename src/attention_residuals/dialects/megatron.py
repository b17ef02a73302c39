"""Depth attention in GPT stacks of Megatron-LM, pull request 6840.

The parameters are those of its `AttentionResidual`, which a layer has as `self_attention_attn_res` and `mlp_attn_res`.
What the decoder calls that of the last read was not to be found; written is what its multi-token prediction calls it.
"""

from typing import Final

from attention_residuals.dialects.block_keys import BlockKey
from attention_residuals.dialects.depth import DepthDialect, SizeKeys
from attention_residuals.dialects.names import one

PREFIXES: Final = {
    "{mixer}": "decoder.layers.{layer}.self_attention_attn_res.",
    "{channels}": "decoder.layers.{layer}.mlp_attn_res.",
    "output": "decoder.final_attn_res.",
}

MEGATRON: Final = DepthDialect(
    "megatron",
    "GPT stacks of Megatron-LM, pull request 6840, the depth tensors",
    BlockKey("attn_res_block_layers", "Megatron"),
    # The first read has one source: its module is there as in every layer, and changes nothing.
    tuple(
        one(f"stream.{part}.{ours}", prefix + name, unused=fill if ours == "{mixer}" else None)
        for ours, prefix in PREFIXES.items()
        for part, name, fill in (("key_norms", "key_norm_weight", 1.0), ("queries", "pseudo_query", 0.0))
    ),
    SizeKeys("num_layers", "hidden_size", "layernorm_epsilon"),
    extra={"enable_attention_residuals": True},
    refused={
        "is_hybrid_model": (
            "in hybrid stacks attn_res_block_layers counts entries of the layer pattern, of which a layer here has "
            "two, and tensors have other names; only GPT stacks are read"
        )
    },
    left_out="the depth tensors alone: the rest of a Megatron checkpoint is for its own converters",
)
