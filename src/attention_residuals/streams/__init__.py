"""Residual streams behind four verbs: start, read, write, finish."""

from attention_residuals.streams.additive import Additive, AdditiveStream
from attention_residuals.streams.attn_res import AttnRes
from attention_residuals.streams.base import Boundary, Residual, State, Stream
from attention_residuals.streams.blocks import Blocks, BlockSize, Layers, Partition, Sublayers
from attention_residuals.streams.depth import AttnResStream, KeyNorms, Queries, ReadScale
from attention_residuals.streams.parameters import DepthCoefficients, DepthMatrices, Norms, PreNorms
from attention_residuals.streams.rivals import (
    MHC,
    DeepNorm,
    DenseFormer,
    DenseNet,
    Highway,
    HyperConnections,
    LayerScale,
    MHCLite,
    PostNorm,
    Rescaled,
    ReZero,
    SiameseNorm,
    StaticDepth,
)
from attention_residuals.streams.rivals.delta import DeltaAttnRes
from attention_residuals.streams.rivals.low_rank import LowRankAttnRes
from attention_residuals.streams.rivals.rms_block import RmsBlockAttnRes
from attention_residuals.streams.variants import Query, Weighting

__all__ = [
    "MHC",
    "Additive",
    "AdditiveStream",
    "AttnRes",
    "AttnResStream",
    "BlockSize",
    "Blocks",
    "Boundary",
    "DeepNorm",
    "DeltaAttnRes",
    "DenseFormer",
    "DenseNet",
    "DepthCoefficients",
    "DepthMatrices",
    "Highway",
    "HyperConnections",
    "KeyNorms",
    "LayerScale",
    "Layers",
    "LowRankAttnRes",
    "MHCLite",
    "Norms",
    "Partition",
    "PostNorm",
    "PreNorms",
    "Queries",
    "Query",
    "ReZero",
    "ReadScale",
    "Rescaled",
    "Residual",
    "RmsBlockAttnRes",
    "SiameseNorm",
    "State",
    "StaticDepth",
    "Stream",
    "Sublayers",
    "Weighting",
]
