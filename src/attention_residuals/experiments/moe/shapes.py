"""Two networks that differ in their channel mixers alone, with as many parameters at work for a token in both."""

import math
import warnings
from dataclasses import dataclass
from functools import lru_cache

from attention_residuals.errors import InputError, require_positive
from attention_residuals.experiments.studies.common import thin_decoder
from attention_residuals.models import (
    BackboneConfig,
    ChannelMixerConfig,
    Decoder,
    Experts,
    Gated,
    GroupedQuery,
    HybridConfig,
    repeated,
)
from attention_residuals.models.meta import without_values
from attention_residuals.nn import MixtureOfExperts


@dataclass(frozen=True)
class Networks:
    """Both networks of a depth: width, heads and the size of the MLP are those of `thin_decoder`.

    Args:
        layers: the depth.
        experts, top_k, shared: of every mixture, as in `models.Experts`.

    Raises:
        InputError: a number that no such mixture can have.
    """

    layers: int
    experts: int
    top_k: int
    shared: int

    def __post_init__(self) -> None:
        require_positive(self, "experts", "top_k")
        if self.shared < 0:
            raise InputError(f"shared is {self.shared}; it must be a number of experts, 0 for none")

    @property
    def dense(self) -> HybridConfig:
        """With an MLP of as many units as the experts have that a token goes through."""
        return self._with(Gated((self.top_k + self.shared) * self.expert_hidden))

    @property
    def mixture(self) -> HybridConfig:
        """With a mixture of experts."""
        return self._with(Experts(self.expert_hidden, self.experts, self.top_k, self.shared))

    @property
    def expert_hidden(self) -> int:
        """Units of an expert: an even share of the decoder's MLP, rounded up."""
        return math.ceil(thin_decoder(self.layers).mlp_width / (self.top_k + self.shared))

    def _with(self, channels: ChannelMixerConfig) -> HybridConfig:
        shape = thin_decoder(self.layers)
        mixer = GroupedQuery(shape.heads, shape.kv_heads, shape.head_dim)
        mixers, channel_mixers = repeated((mixer,), self.layers), repeated((channels,), self.layers)
        return HybridConfig(shape.vocab_size, shape.width, mixers, channel_mixers)


@dataclass(frozen=True)
class Sizes:
    """Parameters of a network: all, the embedding's, those of experts that a token passes by, the routers'."""

    total: int
    embedding: int
    idle: int
    router: int

    @property
    def active(self) -> int:
        """At work for every token, beside the embedding: attention, MLP or chosen experts, routers, norms, head, and
        what reads over the depth.
        """
        return self.total - self.embedding - self.idle


@lru_cache
def sizes(model: BackboneConfig) -> Sizes:
    """Count the parameters of a network, without memory."""
    with warnings.catch_warnings(), without_values():
        warnings.simplefilter("ignore")  # `describe_arms` tells of them
        decoder = Decoder(model)
    mixtures = [module for module in decoder.modules() if isinstance(module, MixtureOfExperts)]
    return Sizes(
        total=sum(parameter.numel() for parameter in decoder.parameters()),
        embedding=decoder.embedding.weight.numel(),
        idle=sum(map(_idle, mixtures)),
        router=sum(parameter.numel() for mixture in mixtures for parameter in mixture.router.parameters()),
    )


def _idle(mixture: MixtureOfExperts) -> int:
    router = mixture.router
    stacks = (mixture.gate.weight, mixture.up.weight, mixture.output.weight)
    return sum(stack[0].numel() for stack in stacks) * (router.experts - router.top_k)
