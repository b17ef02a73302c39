"""Decoders whose layers differ: which token mixer and which channel mixer stands in each, as data."""

from dataclasses import dataclass, field
from typing import final

from attention_residuals.errors import InputError, require_positive
from attention_residuals.models.config import SUBLAYERS_PER_LAYER, BackboneConfig
from attention_residuals.models.layers import ChannelMixerConfig, TokenMixerConfig, Turn
from attention_residuals.streams import Additive, Residual


@final
@dataclass(frozen=True)
class HybridConfig(BackboneConfig):
    """A pre-norm decoder, layer by layer.

    Args:
        vocab_size, width: as in `DecoderConfig`.
        mixers, channels: the token mixer and the channel mixer of each layer; `repeated` makes them of a pattern.
        residual, norm_eps, tied_embeddings: as in `DecoderConfig`.

    Raises:
        InputError: a size below 1, no layers, other numbers of the two, or two kinds of rotary positions.
    """

    vocab_size: int
    width: int
    mixers: tuple[TokenMixerConfig, ...]
    channels: tuple[ChannelMixerConfig, ...]
    residual: Residual = field(default_factory=Additive)
    norm_eps: float = 1e-6
    tied_embeddings: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "vocab_size", "width")
        if not self.mixers or len(self.mixers) != len(self.channels):
            raise InputError(
                f"there are {len(self.mixers)} token mixers and {len(self.channels)} channel mixers; name one of each "
                "for every layer"
            )
        if len(self._turns) > 1:
            one, other, *_ = sorted(self._turns)
            raise InputError(
                f"token mixers want rotary positions of {one.features} features with theta {one.theta:g} and of "
                f"{other.features} with {other.theta:g}; a model has one kind of them"
            )

    @property
    def layers(self) -> int:
        """Pairs of a token mixer and a channel mixer."""
        return len(self.mixers)

    def layer(self, i: int) -> tuple[TokenMixerConfig, ChannelMixerConfig]:
        return self.mixers[i], self.channels[i]

    @property
    def sublayers(self) -> int:
        return SUBLAYERS_PER_LAYER * self.layers

    @property
    def turn(self) -> Turn | None:
        return next(iter(self._turns), None)

    @property
    def _turns(self) -> set[Turn]:
        return {mixer.turn for mixer in self.mixers if mixer.turn is not None}
