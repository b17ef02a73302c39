"""Our own names: tensors as the model has them, and the config of the model as its dataclasses."""

from collections.abc import Mapping
from typing import Any, Final, final

from torch import Tensor

from attention_residuals.configs import from_plain, to_plain
from attention_residuals.dialects.block_keys import BlockKey
from attention_residuals.dialects.depth import DepthDialect
from attention_residuals.dialects.dialect import Dialect, Plain
from attention_residuals.dialects.names import Naming, Rule, one
from attention_residuals.errors import InputError
from attention_residuals.models import BackboneConfig

KIND: Final = "attention_residuals"
FORMAT: Final = 1
"""Version of the config; rises when an older reader would misread a newer one."""


@final
class OwnNames(Naming):
    """Every tensor under the name it has."""

    def plain(self, name: str) -> str:
        return name

    def of_depth(self, name: str) -> bool:
        # What depth attention has is told by the names that the model itself has.
        return False

    def expand(self, config: BackboneConfig, ours: Mapping[str, Tensor]) -> list[Rule]:
        return [one(name, name) for name in ours]


def _owns(plain: Plain) -> bool:
    return plain.get("kind") == KIND


def _from_plain(plain: Plain) -> BackboneConfig:
    if plain.get("format") != FORMAT:
        raise InputError(f"format is {plain.get('format')!r}, this version reads {FORMAT}; use a newer version")
    return from_plain(BackboneConfig, plain.get("model"), "model")  # pyright: ignore[reportAbstractUsage]


def _to_plain(config: BackboneConfig, dtype: str) -> dict[str, Any]:
    return {"kind": KIND, "format": FORMAT, "dtype": dtype, "model": to_plain(config)}


OURS: Final = Dialect("ours", "the names of this package", _owns, _from_plain, _to_plain, OwnNames())

OURS_DEPTH: Final = DepthDialect(
    OURS.name,
    OURS.summary,
    BlockKey("block_sublayers", "our own", any_number=True),
    tuple(
        one(f"stream.{part}.{place}", f"stream.{part}.{place}")
        for place in ("{mixer}", "{channels}", "output")
        for part in ("key_norms", "queries")
    ),
)
