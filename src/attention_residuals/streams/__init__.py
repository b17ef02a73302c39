"""Residual streams behind four verbs: start, read, write, finish."""

from attention_residuals.streams.additive import Additive, AdditiveStream
from attention_residuals.streams.attn_res import AttnRes
from attention_residuals.streams.base import Residual, State, Stream
from attention_residuals.streams.blocks import Blocks, BlockSize, Layers, Partition, Sublayers
from attention_residuals.streams.depth import AttnResStream, KeyNorms, Queries, ReadScale
from attention_residuals.streams.parameters import DepthCoefficients, DepthMatrices, Norms, PreNorms
from attention_residuals.streams.rivals.delta import DeltaAttnRes
from attention_residuals.streams.rivals.low_rank import LowRankAttnRes
from attention_residuals.streams.rivals.rms_block import RmsBlockAttnRes
from attention_residuals.streams.variants import Query, Weighting

__all__ = [
    "Additive",
    "AdditiveStream",
    "AttnRes",
    "AttnResStream",
    "BlockSize",
    "Blocks",
    "DeltaAttnRes",
    "DepthCoefficients",
    "DepthMatrices",
    "KeyNorms",
    "Layers",
    "LowRankAttnRes",
    "Norms",
    "Partition",
    "PreNorms",
    "Queries",
    "Query",
    "ReadScale",
    "Residual",
    "RmsBlockAttnRes",
    "State",
    "Stream",
    "Sublayers",
    "Weighting",
]
