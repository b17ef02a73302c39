"""The sizes of a decoder, and the one dial that derives them."""

from abc import ABC, abstractmethod
from dataclasses import Field, dataclass, field
from typing import Any, ClassVar

from torch import nn

from attention_residuals.errors import InputError, require_positive
from attention_residuals.models.layers import ChannelMixerConfig, Gated, GroupedQuery, TokenMixerConfig, Turn
from attention_residuals.streams import Additive, Residual

SUBLAYERS_PER_LAYER = 2
"""A token mixer such as attention, then a channel mixer such as an MLP."""

BYTE_VOCABULARY = 256
"""Vocabulary of a model that reads bytes as tokens."""


class BackboneConfig(ABC):
    """What a decoder is built from. Its kinds are frozen dataclasses with these fields among others.

    `width`: D of the stream. `tied_embeddings`: the head is the embedding.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    vocab_size: int
    width: int
    residual: Residual
    norm_eps: float
    tied_embeddings: bool

    @abstractmethod
    def layer(self, i: int) -> tuple[TokenMixerConfig, ChannelMixerConfig]:
        """The two sublayers of layer `i`, 0-based."""

    @property
    @abstractmethod
    def sublayers(self) -> int:
        """Modules that read and write the stream."""

    @property
    @abstractmethod
    def turn(self) -> Turn | None:
        """The one rotation of all its token mixers; None for none."""

    def build_sublayer(self, i: int) -> nn.Module:
        """Sublayer `i`, 0-based: 2k mixes the tokens in layer k, 2k + 1 its channels."""
        mixer, channels = self.layer(i // SUBLAYERS_PER_LAYER)
        return channels.build(self.width) if i % SUBLAYERS_PER_LAYER else mixer.build(self.width, self.norm_eps)


@dataclass(frozen=True)
class DecoderConfig(BackboneConfig):
    """A pre-norm decoder. Widths in features, `layers` in attention-MLP pairs; `from_depth` gives good proportions.

    Raises:
        InputError: a size below 1.
    """

    vocab_size: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    residual: Residual = field(default_factory=Additive)
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-6
    qk_norm: bool = False
    tied_embeddings: bool = False

    def __post_init__(self) -> None:
        require_positive(self, "vocab_size", "layers", "width", "heads", "kv_heads", "head_dim", "mlp_width")

    def layer(self, i: int) -> tuple[TokenMixerConfig, ChannelMixerConfig]:
        return self._attention, Gated(self.mlp_width)

    @property
    def sublayers(self) -> int:
        return SUBLAYERS_PER_LAYER * self.layers

    @property
    def turn(self) -> Turn | None:
        return self._attention.turn

    @property
    def _attention(self) -> GroupedQuery:
        return GroupedQuery(self.heads, self.kv_heads, self.head_dim, self.rope_theta, self.qk_norm)

    @classmethod
    def from_depth(
        cls, layers: int, *, vocab_size: int = BYTE_VOCABULARY, residual: Residual | None = None
    ) -> "DecoderConfig":
        """Every size from the depth alone. Deep and thin, since depth is what the method is about."""
        if layers < 1:
            raise InputError(f"depth is {layers} layers; a decoder needs at least 1")
        head_dim = 16
        heads = max(1, round(layers / 3))  # 12 layers: 4 heads
        width = head_dim * heads  # 12 layers: 64 features, about 5 a layer
        kv_heads = heads // 2 if heads % 2 == 0 else heads  # two query heads share a key head where they can
        mlp_width = 16 * -(
            -8 * width // (3 * 16)
        )  # 8/3 of the width, up to a multiple of 16: SwiGLU has three matrices
        return cls(
            vocab_size=vocab_size,
            layers=layers,
            width=width,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            mlp_width=mlp_width,
            residual=residual or Additive(),
        )
