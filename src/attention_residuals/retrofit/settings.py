"""What was done to a model, as it stands in its config: no dialect of another library, every size with its unit."""

from dataclasses import dataclass, replace
from typing import Any

from attention_residuals.configs import from_plain, to_plain
from attention_residuals.errors import InputError
from attention_residuals.retrofit.declarations import Layout
from attention_residuals.streams import AttnRes, AttnResStream, BlockSize, Layers, ReadScale, Sublayers
from attention_residuals.streams.blocks import partition

NAME = "attention_residuals"
"""Of the entry in the config, and of the submodule that holds the depth parameters of a stack."""

VERSION = 1


@dataclass(frozen=True)
class StackSettings:
    """One converted stack.

    Args:
        name: leads from the model to the owner of the stack; empty for the model itself.
        owner: its class.
        sublayers: increments of the stack.
        block_sublayers: length of its blocks.
        width: D.
    """

    name: str
    owner: str
    sublayers: int
    block_sublayers: int
    width: int

    def build(self, scale: ReadScale) -> AttnResStream:
        """The stream of this stack, its queries zero. The readers of the model norm what they read themselves."""
        residual = AttnRes(Sublayers(self.block_sublayers), scale=scale)
        stream = residual.build(self.sublayers, self.width, pre_norm=False)
        assert isinstance(stream, AttnResStream)
        return stream


@dataclass(frozen=True)
class Settings:
    """A conversion: `block` as it was asked for, and what came of it in each stack."""

    architecture: str
    block: BlockSize
    scale: ReadScale
    stacks: tuple[StackSettings, ...]
    version: int = VERSION

    def to_entry(self) -> dict[str, Any]:
        """Plain JSON for the config."""
        return to_plain(self)


def read_entry(config: Any, source: object) -> Settings:
    """The settings in a config.

    Raises:
        InputError: there are none, or of another version.
    """
    entry = getattr(config, NAME, None)
    if entry is None:
        raise InputError(f"{source} was not converted: its config has no {NAME}; load it with transformers")
    version = entry.get("version") if isinstance(entry, dict) else None
    if version != VERSION:
        raise InputError(
            f"{source} was converted in version {version!r}, and this one reads {VERSION}; use a newer one"
        )
    return from_plain(Settings, entry, NAME)


def settle(layout: Layout, block: BlockSize, width: int) -> StackSettings:
    """The settings of one stack for a block size, whose layers are those of the model.

    Raises:
        InputError: layers were asked for, and those of the model differ in how much they write.
    """
    sublayers = len(layout.increments)
    if isinstance(block, Layers):
        if sublayers % len(layout.layers):
            raise InputError(
                f"layers of {layout.name} write different numbers of sublayers; give block_size=Sublayers(n)"
            )
        block = replace(block, sublayers_per_layer=sublayers // len(layout.layers))
    cut = partition(block, sublayers)
    return StackSettings(layout.name, type(layout.owner).__name__, sublayers, cut.block, width)
