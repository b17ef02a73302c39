"""The sizes of a decoder under the names that `transformers` uses."""

from abc import abstractmethod
from typing import Any, ClassVar

from transformers import PreTrainedConfig

from attention_residuals.configs import from_plain, to_plain
from attention_residuals.errors import InputError, is_count, require_positive
from attention_residuals.models import (
    SUBLAYERS_PER_LAYER,
    BackboneConfig,
    DecoderConfig,
)
from attention_residuals.streams import AttnRes, BlockSize, Residual

MODEL_TYPE = "attn_res"

FOREIGN_KEYS = {
    "attnres_block_size": ("sublayers, as in flash-linear-attention", "Sublayers"),
    "attn_res_block_size": ("layers, as in Kimi K3", "Layers"),
    "attnres_num_blocks": ("the number of blocks", "Blocks"),
}
"""Block sizes of other dialects: what they count, and our unit for it."""

RESULTING = ("residual", "num_hidden_layers", "block_sublayers")
"""Fields that decide how long a block is."""


class BackboneModelConfig(PreTrainedConfig):
    """What the configs of all our models share; every field but the last two is what its name means in `transformers`.

    Args:
        residual: the residual stream as plain JSON, each object with its `type`, so that a block size carries its unit:
            `{"type": "AttnRes", "block": {"type": "Sublayers", "count": 4}}`, `{"type": "Additive"}`; or a `Residual`.
            None: Full Attention Residuals.
        block_sublayers: sublayers a block has in the end; None for a stream without blocks. It follows from the fields
            above, and is written beside them so that a reader who takes the unit for another one is found out.

    Raises:
        InputError: a size below 1, a block without a unit or of another dialect, `block_sublayers` that does not follow
            from the rest, or the config of another kind of model.
    """

    keys_to_ignore_at_inference: ClassVar[list[str]] = ["cache"]
    decoder_kind: ClassVar[type[BackboneConfig]]

    vocab_size: int = 256
    hidden_size: int = 64
    num_hidden_layers: int = 12
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 2048
    tie_word_embeddings: bool = False
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    residual: Any = None
    block_sublayers: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.residual is None:
            _refuse_foreign(kwargs)
            self.residual = AttnRes()
        require_positive(self, "vocab_size", "hidden_size", "num_hidden_layers", "max_position_embeddings")
        residual = read_residual(self.residual)
        self.residual = to_plain(residual)
        found = _block_sublayers(residual, SUBLAYERS_PER_LAYER * self.num_hidden_layers)
        if self.block_sublayers not in (None, found):
            raise InputError(
                f"block_sublayers is {self.block_sublayers}, and residual {self.residual} gives {found} over "
                f"{self.num_hidden_layers} layers: the weights were trained with another block than residual says; "
                "bring back the config they were saved with"
            )
        self.block_sublayers = found
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As in `transformers`; a change of `residual` or layers on the way in is a change, and no disagreement."""
        found = config_dict.get("model_type", cls.model_type)
        if found != cls.model_type:
            raise InputError(
                f"model_type is '{found}', and these classes read '{cls.model_type}'; load it with AutoModelForCausalLM"
            )
        changes = {name: kwargs.pop(name) for name in RESULTING if name in kwargs}
        if changes:
            cls(**config_dict)  # what was saved agrees with itself
            config_dict = {**config_dict, "block_sublayers": None, **changes}
        return super().from_dict(config_dict, **kwargs)

    @abstractmethod
    def to_decoder_config(self) -> BackboneConfig:
        """The same decoder under our names."""

    def to_dict(self) -> dict[str, Any]:
        """As in `transformers`; `block_sublayers` follows fields that were changed since."""
        residual = read_residual(self.residual)
        blocks = _block_sublayers(residual, SUBLAYERS_PER_LAYER * self.num_hidden_layers)
        return {**super().to_dict(), "residual": to_plain(residual), "block_sublayers": blocks}

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing: `save_pretrained` of a model writes the stub that leads back here, and never a copy of this code."""


class AttnResConfig(BackboneModelConfig):
    """A decoder of attention and SwiGLU on any residual stream; see `BackboneModelConfig` for the fields of all."""

    model_type: ClassVar[str] = MODEL_TYPE
    decoder_kind: ClassVar[type[BackboneConfig]] = DecoderConfig

    num_attention_heads: int = 4
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 176
    rope_theta: float = 10_000.0
    qk_norm: bool = False

    def __post_init__(self, **kwargs: Any) -> None:
        require_positive(self, "hidden_size", "num_attention_heads")  # which the next ones follow from
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None:
            self.head_dim = self.hidden_size // self.num_attention_heads
        require_positive(self, "head_dim", "num_key_value_heads", "intermediate_size")
        super().__post_init__(**kwargs)

    @classmethod
    def from_decoder_config(cls, config: DecoderConfig, **changes: Any) -> "AttnResConfig":
        """The same decoder; `changes` are fields that a `DecoderConfig` does not have, such as token ids."""
        return cls(
            vocab_size=config.vocab_size,
            hidden_size=config.width,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            intermediate_size=config.mlp_width,
            rope_theta=config.rope_theta,
            rms_norm_eps=config.norm_eps,
            qk_norm=config.qk_norm,
            tie_word_embeddings=config.tied_embeddings,
            residual=config.residual,
            **changes,
        )

    def to_decoder_config(self) -> DecoderConfig:
        assert self.num_key_value_heads is not None and self.head_dim is not None
        return DecoderConfig(
            vocab_size=self.vocab_size,
            layers=self.num_hidden_layers,
            width=self.hidden_size,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            head_dim=self.head_dim,
            mlp_width=self.intermediate_size,
            residual=read_residual(self.residual),
            rope_theta=self.rope_theta,
            norm_eps=self.rms_norm_eps,
            qk_norm=self.qk_norm,
            tied_embeddings=self.tie_word_embeddings,
        )


def read_residual(plain: Any) -> Residual:
    """The stream that plain JSON stands for.

    Raises:
        InputError: it stands for none, or a block size has no unit.
    """
    if isinstance(plain, Residual):
        return plain
    block = plain.get("block") if isinstance(plain, dict) else None
    if block is not None and not isinstance(block, dict):
        raise InputError(
            f"residual.block is {block!r}, a number without a unit; write it with one, for example "
            f"{_written('Sublayers', block)}, or Layers, or Blocks"
        )
    return from_plain(Residual, plain, "residual")  # pyright: ignore[reportAbstractUsage]


def _written(unit: str, count: Any) -> str:
    return f'{{"type": "{unit}", "count": {count if is_count(count) else 4}}}'


def _refuse_foreign(fields: dict[str, Any]) -> None:
    for key, (counted, unit) in FOREIGN_KEYS.items():
        if key in fields:
            raise InputError(
                f"{key} is {fields[key]!r}, of another dialect, where it counts {counted}; write residual="
                f'{{"type": "AttnRes", "block": {_written(unit, fields[key])}}} instead'
            )


def _block_sublayers(residual: Residual, sublayers: int) -> int | None:
    block = getattr(residual, "block", None)
    return min(block.in_sublayers(sublayers), sublayers) if isinstance(block, BlockSize) else None
