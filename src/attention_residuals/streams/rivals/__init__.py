"""Residual schemes to compare with, as streams behind the same four verbs; docs/schemes.md lists them.

Multi-head Attention Residuals have no file of their own: they are the field `heads` of `AttnRes`.
"""

from attention_residuals.streams.rivals.deepnorm import DeepNorm
from attention_residuals.streams.rivals.delta import DeltaAttnRes, DeltaStream
from attention_residuals.streams.rivals.denseformer import DenseFormer
from attention_residuals.streams.rivals.densenet import DenseNet
from attention_residuals.streams.rivals.highway import Highway
from attention_residuals.streams.rivals.hyper import HyperConnections
from attention_residuals.streams.rivals.layerscale import LayerScale
from attention_residuals.streams.rivals.low_rank import LowRankAttnRes, LowRankStream
from attention_residuals.streams.rivals.mhc import MHC
from attention_residuals.streams.rivals.mhc_lite import MHCLite
from attention_residuals.streams.rivals.postnorm import PostNorm
from attention_residuals.streams.rivals.rescaled import Rescaled
from attention_residuals.streams.rivals.rezero import ReZero
from attention_residuals.streams.rivals.rms_block import RmsBlockAttnRes, RmsBlockStream
from attention_residuals.streams.rivals.siamesenorm import SiameseNorm
from attention_residuals.streams.rivals.static import StaticDepth

__all__ = [
    "MHC",
    "DeepNorm",
    "DeltaAttnRes",
    "DeltaStream",
    "DenseFormer",
    "DenseNet",
    "Highway",
    "HyperConnections",
    "LayerScale",
    "LowRankAttnRes",
    "LowRankStream",
    "MHCLite",
    "PostNorm",
    "ReZero",
    "Rescaled",
    "RmsBlockAttnRes",
    "RmsBlockStream",
    "SiameseNorm",
    "StaticDepth",
]
