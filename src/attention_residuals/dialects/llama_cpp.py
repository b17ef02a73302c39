"""Depth attention of llama.cpp's `kimi-k3`: one folded vector a read, to be written only.

Names and keys are those of its GGUF. A GGUF of a whole model of ours is not possible, since its `kimi-k3` has other
sublayers; so vectors are safetensors and keys are JSON, for a `GGUFWriter` to take over.
"""

from typing import Final

from attention_residuals.dialects.block_keys import BlockKey
from attention_residuals.dialects.depth import DepthDialect, SizeKeys
from attention_residuals.dialects.layouts import Folded
from attention_residuals.dialects.names import Rule


def _folded(place: str, theirs: str, unused: float | None = None) -> Rule:
    return Rule((f"stream.key_norms.{place}", f"stream.queries.{place}"), (theirs,), Folded(), unused=unused)


LLAMA_CPP: Final = DepthDialect(
    "llama.cpp",
    "kimi-k3 of llama.cpp, the folded depth vectors, never to be read back",
    BlockKey("kimi-k3.attn_res.block_size", "llama.cpp"),
    (
        # The first read has one source: its vector is in every file and is never used.
        _folded("{mixer}", "blk.{layer}.attn_res_score.weight", unused=0.0),
        _folded("{channels}", "blk.{layer}.ffn_res_score.weight"),
        _folded("output", "output_res_score.weight"),
    ),
    SizeKeys("kimi-k3.block_count", "kimi-k3.embedding_length", "kimi-k3.attention.layer_norm_rms_epsilon"),
    extra={"general.architecture": "kimi-k3"},
    left_out=(
        "the folded depth vectors alone, as safetensors beside the keys of a GGUF: each is the weight of a key norm "
        "times a query, which cannot be taken apart again, so keep the checkpoint that they were written from"
    ),
    unreadable=(
        "its vectors are products of a key norm's weight and a query, and the factors are gone; read the checkpoint "
        "that they were written from"
    ),
)
