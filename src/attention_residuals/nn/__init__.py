"""Sublayers: tensor in, tensor out, knowing nothing of depth."""

from attention_residuals.nn.attention import Attention
from attention_residuals.nn.context import Context, KeyValueCache, RecurrentCache, TokenMixer
from attention_residuals.nn.convolution import ShortConvolution
from attention_residuals.nn.delta import delta_chunked, delta_recurrent, delta_rule
from attention_residuals.nn.kda import DecayGate, DeltaState, KimiDeltaAttention
from attention_residuals.nn.mlp import SwiGLU
from attention_residuals.nn.output import HeadLinear, OutputLinear
from attention_residuals.nn.rope import Rotation, rotate, rotation

__all__ = [
    "Attention",
    "Context",
    "DecayGate",
    "DeltaState",
    "HeadLinear",
    "KeyValueCache",
    "KimiDeltaAttention",
    "OutputLinear",
    "RecurrentCache",
    "Rotation",
    "ShortConvolution",
    "SwiGLU",
    "TokenMixer",
    "delta_chunked",
    "delta_recurrent",
    "delta_rule",
    "rotate",
    "rotation",
]
