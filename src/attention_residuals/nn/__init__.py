"""Sublayers: tensor in, tensor out, knowing nothing of depth."""

from attention_residuals.nn.attention import Attention
from attention_residuals.nn.balance import (
    load_peak,
    load_shares,
    loads_apart,
    take_router_loads,
    update_router_biases,
)
from attention_residuals.nn.context import Context, KeyValueCache, RecurrentCache, TokenMixer
from attention_residuals.nn.convolution import ShortConvolution
from attention_residuals.nn.delta import delta_chunked, delta_recurrent, delta_rule
from attention_residuals.nn.experts import ExpertLinear, ExpertOutputLinear, MixtureOfExperts
from attention_residuals.nn.kda import DecayGate, DeltaState, KimiDeltaAttention
from attention_residuals.nn.mla import LatentAttention
from attention_residuals.nn.mlp import SwiGLU
from attention_residuals.nn.output import HeadLinear, OutputLinear
from attention_residuals.nn.rope import Rotation, rotate, rotation
from attention_residuals.nn.router import Router, Routing

__all__ = [
    "Attention",
    "Context",
    "DecayGate",
    "DeltaState",
    "ExpertLinear",
    "ExpertOutputLinear",
    "HeadLinear",
    "KeyValueCache",
    "KimiDeltaAttention",
    "LatentAttention",
    "MixtureOfExperts",
    "OutputLinear",
    "RecurrentCache",
    "Rotation",
    "Router",
    "Routing",
    "ShortConvolution",
    "SwiGLU",
    "TokenMixer",
    "delta_chunked",
    "delta_recurrent",
    "delta_rule",
    "load_peak",
    "load_shares",
    "loads_apart",
    "rotate",
    "rotation",
    "take_router_loads",
    "update_router_biases",
]
