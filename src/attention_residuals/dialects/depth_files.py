"""Depth attention alone into folders and out of them, in any dialect."""

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attention_residuals.dialects.audit import matched
from attention_residuals.dialects.depth import FORMAT, KIND, DepthDialect, DepthPart, is_depth
from attention_residuals.dialects.names import expanded, named, unwrapped
from attention_residuals.dialects.plain import count, positive
from attention_residuals.dialects.reading import read_config, stored_tensors
from attention_residuals.dialects.registry import DEPTH_DIALECTS
from attention_residuals.dialects.transfer import pieces_of, read_tensors
from attention_residuals.dialects.writing import SHARD_BYTES, require_shard, write_folder
from attention_residuals.errors import InputError
from attention_residuals.models import SUBLAYERS_PER_LAYER
from attention_residuals.models.meta import without_values
from attention_residuals.streams import AttnRes


def save_depth(part: DepthPart, folder: Path | str, dialect: DepthDialect, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write depth tensors, each with the type it has, and a `config.json` with the keys of the dialect.

    Raises:
        InputError: a stream that the dialect cannot tell, or a folder that exists or cannot be written.
    """
    require_shard(shard_bytes)
    block = dialect.block.write(part.residual, SUBLAYERS_PER_LAYER * part.layers)
    like = part.tensors["stream.queries.output"]
    config = {
        "kind": KIND,
        "format": FORMAT,
        "dialect": dialect.name,
        "dtype": str(like.dtype).removeprefix("torch."),
        **dialect.extra,
        dialect.sizes.layers: part.layers,
        dialect.sizes.width: part.width,
        dialect.sizes.eps: part.residual.key_eps,
        dialect.block.name: block,
    }
    rules = expanded(dialect.table, part.layers, part.tensors)
    pieces = [piece for rule in rules for piece in pieces_of(rule, part.tensors, like.unsqueeze(0))]
    write_folder(Path(folder), config, pieces, shard_bytes)


def load_depth(folder: Path | str, dialect: DepthDialect | None = None) -> DepthPart:
    """Read what `save_depth` has written, or a folder that was made the same way.

    Args:
        folder: one with a `config.json` of kind `attention_residuals_depth`, and weights in safetensors.
        dialect: what it must be in; None: what its config says.

    Raises:
        InputError: a config that is missing, of another kind, of no sense or in another unit; a dialect that cannot be
            read back; tensors that are missing, unexpected, of another shape, quantised, damaged or not finite.
    """
    folder = Path(folder)
    plain = read_config(folder)
    dialect = _require(folder, plain, dialect)
    layers, width = count(plain, dialect.sizes.layers), count(plain, dialect.sizes.width)
    dialect.block.refuse_others(plain)
    residual = dialect.block.read(plain.get(dialect.block.name), layers, positive(plain, dialect.sizes.eps))
    if not isinstance(residual, AttnRes):
        raise InputError(
            f"{folder} has depth tensors and no {dialect.block.name}: without a block size they would mean nothing; "
            "bring back the config that was saved"
        )
    ours = _forms(residual, layers, width)
    stored = stored_tensors(folder, partial(unwrapped, wrappers=dialect.wrappers))
    _require_its_names(folder, dialect, stored)
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    rules = matched(folder, expanded(dialect.table, layers, ours), ours, shapes, torch.empty(0, width, device="meta"))
    return DepthPart(layers, width, residual, read_tensors(folder, rules, ours, stored, None))


def _require(folder: Path, plain: Mapping[str, Any], wanted: DepthDialect | None) -> DepthDialect:
    """The dialect of a config, if it can be read and is the wanted one."""
    if not is_depth(plain):
        raise InputError(f"kind is {plain.get('kind')!r}, and depth tensors alone are of kind {KIND}; load the model")
    if plain.get("format") != FORMAT:
        raise InputError(f"format is {plain.get('format')!r}, this version reads {FORMAT}; use a newer version")
    name = plain.get("dialect")
    if name not in DEPTH_DIALECTS:
        known = ", ".join(DEPTH_DIALECTS)
        raise InputError(f"{folder} is in the dialect {name!r}, which is not known; there are {known}")
    dialect = DEPTH_DIALECTS[name]
    if wanted is not None and wanted != dialect:
        raise InputError(f"{folder} is in the dialect {name}, and {wanted.name} was asked for; read it as {name}")
    if dialect.unreadable is not None:
        raise InputError(f"{folder} is in the dialect {name}, which cannot be read back: {dialect.unreadable}")
    for key, meaning in dialect.refused.items():
        if plain.get(key):
            raise InputError(f"{key} is {plain[key]!r}: {meaning}")
    return dialect


def _require_its_names(folder: Path, dialect: DepthDialect, names: Collection[str]) -> None:
    """Refuse a file of another dialect by that one's name, rather than name by name."""
    if any(named(dialect.table, name) for name in names):
        return
    for other in DEPTH_DIALECTS.values():
        if any(named(other.table, unwrapped(name, other.wrappers)) for name in names):
            raise InputError(
                f"{folder} says that it is in the dialect {dialect.name}, and its tensors have names of {other.name}; "
                "bring the weights and the config together that belong together"
            )


def _forms(residual: AttnRes, layers: int, width: int) -> dict[str, Tensor]:
    """Our tensors on the meta device."""
    with without_values():
        stream = residual.build(SUBLAYERS_PER_LAYER * layers, width, pre_norm=False)
    return {f"stream.{name}": tensor for name, tensor in stream.state_dict().items()}
