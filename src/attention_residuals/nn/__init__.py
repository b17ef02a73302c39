"""Sublayers: tensor in, tensor out, knowing nothing of depth."""

from attention_residuals.nn.attention import Attention
from attention_residuals.nn.mlp import SwiGLU
from attention_residuals.nn.output import HeadLinear, OutputLinear
from attention_residuals.nn.rope import rotate

__all__ = ["Attention", "HeadLinear", "OutputLinear", "SwiGLU", "rotate"]
