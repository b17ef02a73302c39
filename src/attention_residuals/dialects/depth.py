"""The depth attention of a model alone, under the names of systems that have no names for the rest of ours."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from torch import Tensor

from attention_residuals.dialects.block_keys import BlockKey
from attention_residuals.dialects.names import WRAPPERS, Table
from attention_residuals.errors import InputError
from attention_residuals.models import SUBLAYERS_PER_LAYER, Decoder
from attention_residuals.streams import AttnRes

KIND: Final = "attention_residuals_depth"
FORMAT: Final = 1
"""Version of the config; rises when an older reader would misread a newer one."""

PARTS: Final = ("stream.queries.", "stream.key_norms.")
"""Where our depth tensors are."""


class SizeKeys(NamedTuple):
    """What a dialect calls the number of layers, the width and the eps of the key norms."""

    layers: str = "num_hidden_layers"
    width: str = "hidden_size"
    eps: str = "rms_norm_eps"


@dataclass(frozen=True)
class DepthDialect:
    """One way to write down depth attention.

    Args:
        name, summary: for people.
        block: its block size.
        table: its tensors, by the names of `Names`.
        sizes: its keys.
        extra: keys with one value in every config.
        refused: keys that ask for something else, and what for.
        wrappers: see `WRAPPERS`.
        left_out: a sentence on what is not written; empty if there is nothing to say.
        unreadable: why it cannot be read back; None if it can.
    """

    name: str
    summary: str
    block: BlockKey
    table: Table
    sizes: SizeKeys = SizeKeys()
    extra: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    wrappers: frozenset[str] = WRAPPERS
    left_out: str = ""
    unreadable: str | None = None


@dataclass(frozen=True)
class DepthPart:
    """The depth attention of a network of `layers` pairs of sublayers: its stream, and queries and key norms `[width]`
    under our names, such as `stream.queries.1`."""

    layers: int
    width: int
    residual: AttnRes
    tensors: dict[str, Tensor]


def depth_of(model: Decoder) -> DepthPart:
    """The depth attention of a model; its tensors are the model's own.

    Raises:
        InputError: it has none.
    """
    config = model.config
    if not isinstance(config.residual, AttnRes):
        raise InputError(
            f"the residual is {type(config.residual).__name__}, which has no depth tensors; only AttnRes has some"
        )
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(PARTS)}
    return DepthPart(config.sublayers // SUBLAYERS_PER_LAYER, config.width, config.residual, tensors)


def is_depth(plain: Mapping[str, Any]) -> bool:
    """Whether a `config.json` is that of depth tensors alone."""
    return plain.get("kind") == KIND
