"""A decoder whose layers differ, under the names that `transformers` uses."""

from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

from attention_residuals.configs import from_plain, to_plain
from attention_residuals.errors import InputError
from attention_residuals.hf.configuration import BackboneModelConfig, read_residual
from attention_residuals.models import BackboneConfig, ChannelMixerConfig, HybridConfig, TokenMixerConfig, kimi_linear
from attention_residuals.streams import AttnRes

MODEL_TYPE = "attn_res_hybrid"

Kind = TypeVar("Kind")


class AttnResHybridConfig(BackboneModelConfig):
    """A decoder whose layers differ, Kimi Linear for one; see `BackboneModelConfig` for the fields of all.

    Args:
        mixers, channels: of every layer the token mixer and the channel mixer as plain JSON, each object with its
            `type` (`{"type": "KimiDelta", "heads": 4, "head_dim": 16, "kernel": 4}`); or as `HybridConfig` has them.
        layer_types: which kind of cache each layer wants, by `transformers`' names; it follows from `mixers`.
        number_of_conv_states: tensors that the cache of a recurrent layer keeps; it follows from `mixers`.
    """

    model_type: ClassVar[str] = MODEL_TYPE
    decoder_kind: ClassVar[type[BackboneConfig]] = HybridConfig

    mixers: Any = ()
    channels: Any = ()
    layer_types: list[str] | None = None
    number_of_conv_states: int = 1

    def __post_init__(self, **kwargs: Any) -> None:
        if not self.mixers:  # `transformers` compares a config with the default one when it prints it
            default = kimi_linear(self.num_hidden_layers)
            self.mixers, self.channels = default.mixers, default.channels
        self.mixers, self.channels = to_plain(self.mixers), to_plain(self.channels)
        kinds = self.to_decoder_config().mixers
        if len(kinds) != self.num_hidden_layers:
            raise InputError(
                f"num_hidden_layers is {self.num_hidden_layers}, and mixers names {len(kinds)} layers; make them equal"
            )
        self.layer_types = ["linear_attention" if kind.states else "full_attention" for kind in kinds]
        self.number_of_conv_states = max(1, *(kind.states for kind in kinds))
        super().__post_init__(**kwargs)

    @classmethod
    def from_decoder_config(cls, config: HybridConfig, **changes: Any) -> "AttnResHybridConfig":
        """The same decoder; `changes` are fields that a `HybridConfig` does not have, such as token ids."""
        return cls(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            mixers=config.mixers,
            channels=config.channels,
            rms_norm_eps=config.norm_eps,
            tie_word_embeddings=config.tied_embeddings,
            residual=config.residual,
            **changes,
        )

    def to_decoder_config(self) -> HybridConfig:
        return HybridConfig(
            vocab_size=self.vocab_size,
            width=self.hidden_size,
            mixers=_read_all(TokenMixerConfig, self.mixers, "mixers"),
            channels=_read_all(ChannelMixerConfig, self.channels, "channels"),
            residual=AttnRes() if self.residual is None else read_residual(self.residual),
            norm_eps=self.rms_norm_eps,
            tied_embeddings=self.tie_word_embeddings,
        )


def _read_all(kind: type[Kind], plain: Sequence[Any], path: str) -> tuple[Kind, ...]:
    return tuple(from_plain(kind, one, f"{path}[{i}]") for i, one in enumerate(plain))
