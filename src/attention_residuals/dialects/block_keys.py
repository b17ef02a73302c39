"""Block sizes in the configs of dialects: one key each, and what it counts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from attention_residuals.errors import InputError, is_count
from attention_residuals.models import SUBLAYERS_PER_LAYER, BackboneConfig
from attention_residuals.streams import Additive, AttnRes, BlockSize, Layers, Residual, Sublayers

COUNTED: Final = {
    "attn_res_block_size": "layers",
    "attnres_block_size": "sublayers",
    "attn_res_block_layers": "layers",
    "n_layers_per_attn_res_block": "layers",
    "kimi-k3.attn_res.block_size": "layers",
    "block_sublayers": "sublayers",
}
"""Near-equal keys, and what they count: Kimi K3, flash-linear-attention, Megatron-LM, Inkling 2, llama.cpp, ours."""

BLOCKS: Final = re.compile(r"(.*_)?(num|n)_blocks")
"""Keys that count blocks, such as `attnres_num_blocks`."""

CUTS: Final = (
    "counts blocks, and systems cut a depth into so many of them differently: into equal ones and a shorter last one, "
    "or into balanced ones, which is another scheme"
)


@dataclass(frozen=True)
class BlockKey:
    """How a dialect says how long a block is; absent or null is the standard residual.

    Args:
        name: the key; what it counts is in `COUNTED`.
        names: what messages call the dialect.
        any_number: for one that counts sublayers: whether a block may end inside a layer. Full always may.
    """

    name: str
    names: str
    any_number: bool = False

    @property
    def counts(self) -> str:
        """What the number counts: "layers" or "sublayers"."""
        return COUNTED[self.name]

    def read(self, block: Any, layers: int, eps: float) -> Residual:
        """The residual stream that a value asks for in a network of `layers`.

        Raises:
            InputError: a value of no sense, or in another unit as far as that can be told.
        """
        if block is None:
            return Additive()
        if not is_count(block):
            raise InputError(
                f"{self.name} is {block!r}; it must be a whole number of {self.counts} of at least 1, or null for the "
                "standard residual"
            )
        sublayers = SUBLAYERS_PER_LAYER * layers
        if self.counts == "layers" and block > sublayers:
            raise InputError(
                f"{self.name} is {block}, more than the {sublayers} sublayers there are, and it counts layers; "
                f"the model has {layers}"
            )
        if self.counts == "sublayers" and not self.any_number and block % SUBLAYERS_PER_LAYER and block != 1:
            raise InputError(
                f"{self.name} is {block}, and it counts sublayers, of which a layer has {SUBLAYERS_PER_LAYER}: under "
                f"{self.names} names it must be 1, which is Full, or even"
            )
        return AttnRes(Layers(block) if self.counts == "layers" else Sublayers(block), key_eps=eps)

    def write(self, residual: Residual, sublayers: int) -> int | None:
        """The value for a residual stream of so many sublayers; None for the standard residual.

        Raises:
            InputError: a stream that has no block size in this unit, or a variant.
        """
        if residual == Additive():
            return None
        if not isinstance(residual, AttnRes):
            raise InputError(
                f"{self.names} names know Additive and AttnRes, and the residual is {type(residual).__name__}"
            )
        if replace(residual, block=Sublayers(1), key_eps=AttnRes.key_eps, two_phase=True) != AttnRes():
            raise InputError(f"{self.names} names know the method without variants, and the residual is {residual}")
        if self.counts == "layers":
            return self._in_layers(residual.block, sublayers)
        return self._in_sublayers(residual.block, sublayers)

    def refuse_others(self, *configs: Mapping[str, Any]) -> None:
        """Refuse configs with the key of another dialect, whatever else they say.

        Raises:
            InputError: it says what that key counts where it is from, and what this dialect has.
        """
        for key in dict.fromkeys(key for config in configs for key in config if key != self.name):
            counted = _counted(key)
            if counted is not None and any(config.get(key) is not None for config in configs):
                raise InputError(
                    f"{key} is of another dialect, where it {counted}; under {self.names} names the key is "
                    f"{self.name}, and it counts {self.counts}"
                )

    def _in_layers(self, block: BlockSize, sublayers: int) -> int:
        size = block.in_sublayers(sublayers)
        if size > sublayers and (size % SUBLAYERS_PER_LAYER or size > SUBLAYERS_PER_LAYER * sublayers):
            size = sublayers  # one block, however much longer than the network it was said to be
        if size % SUBLAYERS_PER_LAYER:
            raise InputError(
                f"a block has {size} sublayers, which is no whole number of layers, and {self.name} counts layers; "
                f"the model needs blocks of a multiple of {SUBLAYERS_PER_LAYER} sublayers"
            )
        return size // SUBLAYERS_PER_LAYER

    def _in_sublayers(self, block: BlockSize, sublayers: int) -> int:
        size = block.in_sublayers(sublayers)
        if size % SUBLAYERS_PER_LAYER and size > sublayers:
            size = sublayers
        if size % SUBLAYERS_PER_LAYER and size != 1 and not self.any_number:
            raise InputError(
                f"a block has {size} sublayers, so that one ends inside a layer; under {self.names} names the model "
                f"needs blocks of 1, which is Full, or of a multiple of {SUBLAYERS_PER_LAYER} sublayers"
            )
        return size


def require_one_eps(names: str, config: BackboneConfig) -> None:
    """Refuse depth keys that are normed with another eps than everything else, where a config has room for one.

    Raises:
        InputError: it names both.
    """
    residual = config.residual
    if isinstance(residual, AttnRes) and residual.key_eps != config.norm_eps:
        raise InputError(
            f"key_eps is {residual.key_eps} and norm_eps {config.norm_eps}; under {names} names they are one number"
        )


def known_keys(plain: Mapping[str, Any]) -> str:
    """What the block sizes in a foreign config count, as a part of a sentence; empty if it has none."""
    found = [f"{key} {counted}" for key in plain if (counted := _counted(key)) is not None and plain[key] is not None]
    return f"; its {', '.join(found)}" if found else ""


def _counted(key: str) -> str | None:
    """What a key does; None for one that is no block size."""
    if key in COUNTED:
        return f"counts {COUNTED[key]}"
    return CUTS if BLOCKS.fullmatch(key) else None
