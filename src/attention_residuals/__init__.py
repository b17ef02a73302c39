"""Attention Residuals: softmax attention over depth in place of the residual sum (arXiv 2603.15031).

The public surface. A stream carries a network's state through depth behind four verbs::

    stream = AttnRes(Sublayers(4)).build(sublayers=24, width=512)
    state = stream.start(embedding)
    for i, sublayer in enumerate(sublayers):
        state = stream.write(state, i, sublayer(stream.read(state, i)))
    x = stream.finish(state)
"""

from attention_residuals.allocator import keep_freed_memory
from attention_residuals.errors import InputError
from attention_residuals.models import Decoder, DecoderConfig, build_decoder
from attention_residuals.ops import Partial, attn_res, attn_res_partial, merge, normalise
from attention_residuals.streams import (
    Additive,
    AttnRes,
    Blocks,
    BlockSize,
    Layers,
    Query,
    ReadScale,
    Residual,
    State,
    Stream,
    Sublayers,
    Weighting,
)

__all__ = [
    "Additive",
    "AttnRes",
    "BlockSize",
    "Blocks",
    "Decoder",
    "DecoderConfig",
    "InputError",
    "Layers",
    "Partial",
    "Query",
    "ReadScale",
    "Residual",
    "State",
    "Stream",
    "Sublayers",
    "Weighting",
    "__version__",
    "attn_res",
    "attn_res_partial",
    "build_decoder",
    "keep_freed_memory",
    "merge",
    "normalise",
]

__version__ = "0.1.0"
