"""Residual streams behind four verbs: start, read, write, finish."""

from attention_residuals.streams.additive import Additive, AdditiveStream
from attention_residuals.streams.attn_res import AttnRes
from attention_residuals.streams.base import Boundary, Residual, State, Stream
from attention_residuals.streams.blocks import Blocks, BlockSize, Layers, Partition, Sublayers
from attention_residuals.streams.depth import AttnResStream, KeyNorms, Queries, ReadScale
from attention_residuals.streams.parameters import DepthCoefficients, DepthMatrices, Norms, PreNorms

__all__ = [
    "Additive",
    "AdditiveStream",
    "AttnRes",
    "AttnResStream",
    "BlockSize",
    "Blocks",
    "Boundary",
    "DepthCoefficients",
    "DepthMatrices",
    "KeyNorms",
    "Layers",
    "Norms",
    "Partition",
    "PreNorms",
    "Queries",
    "ReadScale",
    "Residual",
    "State",
    "Stream",
    "Sublayers",
]
