"""What the two sublayers of a layer are, as data: a token mixer, then a channel mixer."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, final

from torch import nn

from attention_residuals.errors import InputError, require_positive
from attention_residuals.nn import (
    Attention,
    DeltaState,
    KimiDeltaAttention,
    LatentAttention,
    Mamba2,
    MixtureOfExperts,
    SwiGLU,
    TokenMixer,
)
from attention_residuals.nn.attention import require_heads, require_window
from attention_residuals.nn.mamba2 import Mamba2State, require_groups
from attention_residuals.nn.window import WindowState

Kind = TypeVar("Kind")


class Turn(NamedTuple):
    """Rotary positions: of how many features, an even number, and the base of their angles."""

    features: int
    theta: float


@dataclass(frozen=True)
class TokenMixerConfig(ABC):
    """A sublayer in which tokens see each other."""

    @abstractmethod
    def build(self, width: int, norm_eps: float) -> TokenMixer:
        """The module, for a stream of `width` features."""

    @property
    def turn(self) -> Turn | None:
        """The rotation that it wants of its context; None for none."""
        return None

    @property
    def states(self) -> int:
        """Tensors of fixed sizes that a cache keeps for it; 0: keys and values of every token."""
        return 0


@dataclass(frozen=True)
class ChannelMixerConfig(ABC):
    """A sublayer that computes each token by itself."""

    @abstractmethod
    def build(self, width: int) -> nn.Module:
        """The module, for a stream of `width` features."""


@final
@dataclass(frozen=True)
class GroupedQuery(TokenMixerConfig):
    """Softmax attention of grouped queries with rotary positions; fields as in `nn.Attention`."""

    heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float = 10_000.0
    qk_norm: bool = False
    window: int | None = None

    def __post_init__(self) -> None:
        require_positive(self, "heads", "kv_heads", "head_dim")
        require_heads(self.heads, self.kv_heads, self.head_dim)
        require_window(self.window)

    def build(self, width: int, norm_eps: float) -> TokenMixer:
        return Attention(
            width, self.heads, self.kv_heads, self.head_dim,
            rope_theta=self.rope_theta, qk_norm=self.qk_norm, norm_eps=norm_eps, window=self.window,
        )  # fmt: skip

    @property
    def turn(self) -> Turn | None:
        return Turn(self.head_dim, self.rope_theta)

    @property
    def states(self) -> int:
        return 0 if self.window is None else len(WindowState._fields)


@final
@dataclass(frozen=True)
class KimiDelta(TokenMixerConfig):
    """Kimi Delta Attention; fields as in `nn.KimiDeltaAttention`."""

    heads: int
    head_dim: int
    kernel: int = 4

    def __post_init__(self) -> None:
        require_positive(self, "heads", "head_dim", "kernel")

    def build(self, width: int, norm_eps: float) -> TokenMixer:
        return KimiDeltaAttention(width, self.heads, self.head_dim, kernel=self.kernel, norm_eps=norm_eps)

    @property
    def states(self) -> int:
        return len(DeltaState._fields)


@final
@dataclass(frozen=True)
class StateSpace(TokenMixerConfig):
    """Mamba-2; fields as in `nn.Mamba2`."""

    heads: int
    head_dim: int
    state_dim: int
    groups: int = 1
    kernel: int = 4

    def __post_init__(self) -> None:
        require_positive(self, "heads", "head_dim", "state_dim", "groups", "kernel")
        require_groups(self.heads, self.groups)

    def build(self, width: int, norm_eps: float) -> TokenMixer:
        return Mamba2(
            width, self.heads, self.head_dim, self.state_dim,
            groups=self.groups, kernel=self.kernel, norm_eps=norm_eps,
        )  # fmt: skip

    @property
    def states(self) -> int:
        return len(Mamba2State._fields)


@final
@dataclass(frozen=True)
class Latent(TokenMixerConfig):
    """Multi-head latent attention; fields as in `nn.LatentAttention`, `latent_eps` its `norm_eps`, None the model's."""

    heads: int
    kv_rank: int
    head_dim: int
    shared_dim: int
    value_dim: int
    query_rank: int | None = None
    rope_theta: float | None = None
    latent_eps: float | None = None

    def __post_init__(self) -> None:
        require_positive(self, "heads", "kv_rank", "head_dim", "value_dim")

    def build(self, width: int, norm_eps: float) -> TokenMixer:
        return LatentAttention(
            width, self.heads, self.kv_rank, self.head_dim, self.shared_dim, self.value_dim,
            query_rank=self.query_rank, rope_theta=self.rope_theta,
            norm_eps=norm_eps if self.latent_eps is None else self.latent_eps,
        )  # fmt: skip

    @property
    def turn(self) -> Turn | None:
        return None if self.rope_theta is None or not self.shared_dim else Turn(self.shared_dim, self.rope_theta)


@final
@dataclass(frozen=True)
class Gated(ChannelMixerConfig):
    """SwiGLU of `hidden` units."""

    hidden: int

    def __post_init__(self) -> None:
        require_positive(self, "hidden")

    def build(self, width: int) -> nn.Module:
        return SwiGLU(width, self.hidden)


@final
@dataclass(frozen=True)
class Experts(ChannelMixerConfig):
    """A mixture of experts of `hidden` units each; fields as in `nn.MixtureOfExperts`."""

    hidden: int
    experts: int
    top_k: int
    shared: int = 1
    scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1

    def __post_init__(self) -> None:
        require_positive(self, "hidden", "experts", "top_k")
        if self.top_k > self.experts:
            raise InputError(
                f"top_k is {self.top_k} of {self.experts} experts; a token can choose at most {self.experts}"
            )

    def build(self, width: int) -> nn.Module:
        return MixtureOfExperts(
            width, self.hidden, self.experts, self.top_k,
            shared=self.shared, scale=self.scale, groups=self.groups, chosen_groups=self.chosen_groups,
        )  # fmt: skip


def repeated(pattern: Sequence[Kind], layers: int) -> tuple[Kind, ...]:
    """A pattern over and over for so many layers, cut off at the end.

    Raises:
        InputError: an empty pattern, or one with more layers than there are.
    """
    if not pattern or len(pattern) > layers:
        raise InputError(
            f"a pattern of {len(pattern)} layers does not fit {layers}; name at least 1 and at most {layers}"
        )
    return tuple(pattern[i % len(pattern)] for i in range(layers))
