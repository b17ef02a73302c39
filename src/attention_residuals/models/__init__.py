"""A decoder on any residual stream."""

from attention_residuals.models.config import BYTE_VOCABULARY, SUBLAYERS_PER_LAYER, DecoderConfig
from attention_residuals.models.decoder import Backbone, Decoder, build_decoder, init_decoder
from attention_residuals.models.init import init_weights
from attention_residuals.models.recompute import RecomputedStep, keep_steps, recompute_steps
from attention_residuals.models.roles import Role, parameter_roles

__all__ = [
    "BYTE_VOCABULARY",
    "SUBLAYERS_PER_LAYER",
    "Backbone",
    "Decoder",
    "DecoderConfig",
    "RecomputedStep",
    "Role",
    "build_decoder",
    "init_decoder",
    "init_weights",
    "keep_steps",
    "parameter_roles",
    "recompute_steps",
]
