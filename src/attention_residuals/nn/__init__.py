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
from attention_residuals.nn.cross import CrossAttention, Memory
from attention_residuals.nn.decay import DecayGate, HeadDecay, StateDecay
from attention_residuals.nn.delta import delta_chunked, delta_recurrent, delta_rule
from attention_residuals.nn.experts import ExpertLinear, ExpertOutputLinear, MixtureOfExperts
from attention_residuals.nn.kda import DeltaState, KimiDeltaAttention
from attention_residuals.nn.mamba2 import GroupedRMSNorm, Mamba2, Mamba2State
from attention_residuals.nn.mla import LatentAttention
from attention_residuals.nn.mlp import SwiGLU
from attention_residuals.nn.output import HeadLinear, OutputLinear
from attention_residuals.nn.recurrent import RecurrentMixer
from attention_residuals.nn.rope import Rotation, rotate, rotation
from attention_residuals.nn.router import Router, Routing
from attention_residuals.nn.state_space import state_space, state_space_chunked, state_space_recurrent
from attention_residuals.nn.window import WindowState

__all__ = [
    "Attention",
    "Context",
    "CrossAttention",
    "DecayGate",
    "DeltaState",
    "ExpertLinear",
    "ExpertOutputLinear",
    "GroupedRMSNorm",
    "HeadDecay",
    "HeadLinear",
    "KeyValueCache",
    "KimiDeltaAttention",
    "LatentAttention",
    "Mamba2",
    "Mamba2State",
    "Memory",
    "MixtureOfExperts",
    "OutputLinear",
    "RecurrentCache",
    "RecurrentMixer",
    "Rotation",
    "Router",
    "Routing",
    "ShortConvolution",
    "StateDecay",
    "SwiGLU",
    "TokenMixer",
    "WindowState",
    "delta_chunked",
    "delta_recurrent",
    "delta_rule",
    "load_peak",
    "load_shares",
    "loads_apart",
    "rotate",
    "rotation",
    "state_space",
    "state_space_chunked",
    "state_space_recurrent",
    "take_router_loads",
    "update_router_biases",
]
