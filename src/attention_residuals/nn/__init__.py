"""Sublayers: tensor in, tensor out, knowing nothing of depth."""

from attention_residuals.nn.attention import Attention
from attention_residuals.nn.context import Context, KeyValueCache, TokenMixer
from attention_residuals.nn.mlp import SwiGLU
from attention_residuals.nn.output import HeadLinear, OutputLinear
from attention_residuals.nn.rope import Rotation, rotate, rotation

__all__ = [
    "Attention",
    "Context",
    "HeadLinear",
    "KeyValueCache",
    "OutputLinear",
    "Rotation",
    "SwiGLU",
    "TokenMixer",
    "rotate",
    "rotation",
]
