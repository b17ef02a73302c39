"""A decoder on any residual stream."""

from attention_residuals.models.config import BYTE_VOCABULARY, SUBLAYERS_PER_LAYER, BackboneConfig, DecoderConfig
from attention_residuals.models.counts import ParameterCount, Part, count_parameters
from attention_residuals.models.decoder import Backbone, Decoder, build_decoder, init_decoder
from attention_residuals.models.encoder_decoder import (
    Conditioned,
    EncoderDecoder,
    EncoderDecoderConfig,
    TargetDecoder,
    build_encoder_decoder,
)
from attention_residuals.models.hybrid import HybridConfig
from attention_residuals.models.init import init_weights
from attention_residuals.models.kimi_linear import kimi_linear, kimi_linear_48b
from attention_residuals.models.layers import (
    ChannelMixerConfig,
    Experts,
    Gated,
    GroupedQuery,
    KimiDelta,
    Latent,
    StateSpace,
    TokenMixerConfig,
    repeated,
)
from attention_residuals.models.recompute import RecomputedStep, keep_steps, recompute_steps
from attention_residuals.models.roles import Role, parameter_roles

__all__ = [
    "BYTE_VOCABULARY",
    "SUBLAYERS_PER_LAYER",
    "Backbone",
    "BackboneConfig",
    "ChannelMixerConfig",
    "Conditioned",
    "Decoder",
    "DecoderConfig",
    "EncoderDecoder",
    "EncoderDecoderConfig",
    "Experts",
    "Gated",
    "GroupedQuery",
    "HybridConfig",
    "KimiDelta",
    "Latent",
    "ParameterCount",
    "Part",
    "RecomputedStep",
    "Role",
    "StateSpace",
    "TargetDecoder",
    "TokenMixerConfig",
    "build_decoder",
    "build_encoder_decoder",
    "count_parameters",
    "init_decoder",
    "init_weights",
    "keep_steps",
    "kimi_linear",
    "kimi_linear_48b",
    "parameter_roles",
    "recompute_steps",
    "repeated",
]
