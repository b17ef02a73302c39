"""Residual streams behind four verbs: start, read, write, finish."""

from attention_residuals.streams.additive import Additive, AdditiveStream
from attention_residuals.streams.attn_res import AttnRes
from attention_residuals.streams.base import Residual, State, Stream
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

__all__ = [
    "MHC",
    "Additive",
    "AdditiveStream",
    "AttnRes",
    "AttnResStream",
    "BlockSize",
    "Blocks",
    "DeepNorm",
    "DenseFormer",
    "DenseNet",
    "DepthCoefficients",
    "DepthMatrices",
    "Highway",
    "HyperConnections",
    "KeyNorms",
    "LayerScale",
    "Layers",
    "MHCLite",
    "Norms",
    "Partition",
    "PostNorm",
    "PreNorms",
    "Queries",
    "ReZero",
    "ReadScale",
    "Rescaled",
    "Residual",
    "SiameseNorm",
    "State",
    "StaticDepth",
    "Stream",
    "Sublayers",
]
