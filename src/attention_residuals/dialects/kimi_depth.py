"""Depth attention in the config of Kimi K3: one key, which counts layers."""

from dataclasses import replace
from typing import Any, Final

from attention_residuals.dialects.dialect import Plain
from attention_residuals.dialects.plain import either
from attention_residuals.errors import InputError, is_count
from attention_residuals.models import SUBLAYERS_PER_LAYER, BackboneConfig
from attention_residuals.streams import Additive, AttnRes, BlockSize, Layers, Residual, Sublayers

BLOCK_KEY: Final = "attn_res_block_size"
"""Layers in a block; absent or null is the standard residual."""

FOREIGN_KEYS: Final = ("attnres_block_size", "attnres_num_blocks")
"""Near-equal names of other dialects: sublayers in flash-linear-attention, a number of blocks elsewhere."""


def residual_of(plain: Plain, text: Plain, layers: int, eps: float) -> Residual:
    """The residual stream that a config asks for.

    Raises:
        InputError: a block size of no sense, in another unit as far as that can be told, or two that disagree.
    """
    for key in FOREIGN_KEYS:
        if plain.get(key) is not None or text.get(key) is not None:
            raise InputError(
                f"{key} is of another dialect; under Kimi names the key is {BLOCK_KEY}, and it counts layers"
            )
    block = same_at_both_levels(plain, text, BLOCK_KEY)
    if block is None:
        return Additive()
    if not is_count(block):
        raise InputError(
            f"{BLOCK_KEY} is {block!r}; it must be a whole number of layers of at least 1, or null for the standard "
            "residual"
        )
    sublayers = SUBLAYERS_PER_LAYER * layers
    if block > sublayers:
        raise InputError(
            f"{BLOCK_KEY} is {block}, more than the {sublayers} sublayers there are, and it counts layers; "
            f"the model has {layers}"
        )
    return AttnRes(Layers(block), key_eps=eps)


def to_block(config: BackboneConfig) -> int | None:
    """Layers in a block; None for the standard residual.

    Raises:
        InputError: a residual stream that has no block size in layers.
    """
    residual = config.residual
    if residual == Additive():
        return None
    if not isinstance(residual, AttnRes):
        raise InputError(f"Kimi names know Additive and AttnRes, and the residual is {type(residual).__name__}")
    if replace(residual, block=Sublayers(1), key_eps=AttnRes.key_eps, two_phase=True) != AttnRes():
        raise InputError(f"Kimi names know the method without variants, and the residual is {residual}")
    if residual.key_eps != config.norm_eps:
        raise InputError(
            f"key_eps is {residual.key_eps} and norm_eps {config.norm_eps}; under Kimi names they are one number"
        )
    return _in_layers(residual.block, config.sublayers)


def same_at_both_levels(plain: Plain, text: Plain, key: str) -> Any:
    """A key of the text model, which the config around it may repeat.

    Raises:
        InputError: they disagree.
    """
    outer = None if text is plain else plain.get(key)
    return either(f"text_config.{key}", text.get(key), key, outer, None)


def _in_layers(block: BlockSize, sublayers: int) -> int:
    size = block.in_sublayers(sublayers)
    if size > sublayers and (size % SUBLAYERS_PER_LAYER or size > SUBLAYERS_PER_LAYER * sublayers):
        size = sublayers  # one block, however much longer than the network it was said to be
    if size % SUBLAYERS_PER_LAYER:
        raise InputError(
            f"a block has {size} sublayers, which is no whole number of layers, and {BLOCK_KEY} counts layers; "
            f"the model needs blocks of a multiple of {SUBLAYERS_PER_LAYER} sublayers"
        )
    return size // SUBLAYERS_PER_LAYER
