"""A decoder on any residual stream."""

from attention_residuals.models.config import BYTE_VOCABULARY, SUBLAYERS_PER_LAYER, DecoderConfig
from attention_residuals.models.decoder import Backbone, Decoder, build_decoder
from attention_residuals.models.init import init_weights
from attention_residuals.models.roles import Role, parameter_roles

__all__ = [
    "BYTE_VOCABULARY",
    "SUBLAYERS_PER_LAYER",
    "Backbone",
    "Decoder",
    "DecoderConfig",
    "Role",
    "build_decoder",
    "init_weights",
    "parameter_roles",
]
