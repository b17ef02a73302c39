"""Other residual schemes, behind the same four verbs: for comparisons.

Multi-head Attention Residuals have no file of their own: they are the field `heads` of `AttnRes`.
"""

from attention_residuals.streams.rivals.delta import DeltaAttnRes, DeltaStream
from attention_residuals.streams.rivals.low_rank import LowRankAttnRes, LowRankStream
from attention_residuals.streams.rivals.rms_block import RmsBlockAttnRes, RmsBlockStream

__all__ = [
    "DeltaAttnRes",
    "DeltaStream",
    "LowRankAttnRes",
    "LowRankStream",
    "RmsBlockAttnRes",
    "RmsBlockStream",
]
