"""How sublayers are cut into blocks. Four public dialects use one name for four units, so here the type is the unit."""

import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import final

from attention_residuals.errors import InputError, is_count, require_positive


@dataclass(frozen=True)
class BlockSize(ABC):
    """A block length with its unit. All units end as one number: sublayers per block."""

    count: int

    def __post_init__(self) -> None:
        if not is_count(self.count):
            raise InputError(f"{self} is no block size; {type(self).__name__} takes a whole number of at least 1")

    @abstractmethod
    def in_sublayers(self, sublayers: int) -> int:
        """Sublayers per block in a network of `sublayers`."""


@final
@dataclass(frozen=True)
class Sublayers(BlockSize):
    """Blocks of `count` sublayers (the paper's S, fla's `attnres_block_size`). `Sublayers(1)` is Full AttnRes."""

    def in_sublayers(self, sublayers: int) -> int:
        return self.count


@final
@dataclass(frozen=True)
class Layers(BlockSize):
    """Blocks of `count` layers (Kimi K3's `attn_res_block_size`), a layer being attention and MLP by default."""

    sublayers_per_layer: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "sublayers_per_layer")

    def in_sublayers(self, sublayers: int) -> int:
        return self.count * self.sublayers_per_layer


@final
@dataclass(frozen=True)
class Blocks(BlockSize):
    """About `count` blocks (the paper's N): the length is rounded up, so fewer blocks may result; a warning says so."""

    def in_sublayers(self, sublayers: int) -> int:
        if self.count > sublayers:
            raise InputError(
                f"{self.count} blocks asked of {sublayers} sublayers; "
                f"at most {sublayers} are possible, and Blocks({sublayers}) is Full AttnRes"
            )
        return -(-sublayers // self.count)


@final
@dataclass(frozen=True)
class Partition:
    """Sublayers `0..sublayers-1` in consecutive blocks of `block` sublayers, the last one shorter where it must be."""

    sublayers: int
    block: int

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.sublayers // self.block)

    def opens_block(self, i: int) -> bool:
        """Whether sublayer `i` is the first of its block, so that its read has no partial sum among its sources."""
        return i % self.block == 0

    def sources(self, i: int) -> int:
        """How many sources sublayer `i` reads; `i = sublayers` asks for the output read."""
        return 1 + -(-i // self.block)

    def source_names(self) -> list[str]:
        """Names of the sources of the output read, in order."""
        unit = "output" if self.block == 1 else "block"
        return ["embedding", *(f"{unit} {n}" for n in range(1, self.blocks + 1))]

    def describe(self) -> str:
        """The resulting cut in words."""
        if self.block == 1:
            return f"Full: {self.sublayers} sublayers, {self.sublayers + 1} sources at the output"
        last = self.sublayers - (self.blocks - 1) * self.block
        uneven = "" if last == self.block else f", the last of {last}"
        plural = "block" if self.blocks == 1 else "blocks"
        return (
            f"Block: {self.sublayers} sublayers in {self.blocks} {plural} of {self.block}{uneven}, "
            f"{self.blocks + 1} sources at the output"
        )


def partition(size: BlockSize, sublayers: int) -> Partition:
    """Cut `sublayers` into blocks of `size`; warns where the result is not what the words of `size` promise."""
    asked = size.in_sublayers(sublayers)
    cut = Partition(sublayers, min(asked, sublayers))
    if asked > sublayers:
        warnings.warn(
            f"a block of {asked} sublayers is longer than the network of {sublayers}: one block results, which mixes "
            "the embedding with one running sum and is not the standard residual",
            stacklevel=4,
        )
    if isinstance(size, Blocks) and cut.blocks != size.count:
        warnings.warn(
            f"{size.count} blocks asked of {sublayers} sublayers: blocks of {cut.block} sublayers give {cut.blocks}",
            stacklevel=4,
        )
    return cut
