"""Depth attention of torchtitan's `kimi_k3`: names as in its model and in its `state_dict_adapter.py`."""

from typing import Final

from attention_residuals.dialects.block_keys import BlockKey
from attention_residuals.dialects.depth import DepthDialect
from attention_residuals.dialects.layouts import Viewed
from attention_residuals.dialects.names import one

ROW = Viewed((1, -1))
PREFIXES: Final = {
    "{mixer}": "layers.{layer}.attention_res_",
    "{channels}": "layers.{layer}.ffn_res_",
    "output": "output_res_",
}

TORCHTITAN: Final = DepthDialect(
    "torchtitan",
    "kimi_k3 of torchtitan, the depth tensors",
    BlockKey("attn_res_block_size", "torchtitan"),
    # The first read has one source: its two modules are None there, and have no tensors.
    tuple(
        rule
        for ours, prefix in PREFIXES.items()
        for rule in (
            one(f"stream.key_norms.{ours}", prefix + "norm.weight"),
            one(f"stream.queries.{ours}", prefix + "proj.weight", ROW),
        )
    ),
    left_out=(
        "the depth tensors alone: its kimi_k3 has sublayers that are none of ours (gated latent attention, experts in "
        "a smaller space, another activation), and it reads whole models under Kimi names"
    ),
)
