"""Checkpoints under the names of other systems: which ones there are, what they load as, and how they are written."""

from pathlib import Path

import torch

from attention_residuals.dialects.depth import DepthDialect, DepthPart, depth_of, is_depth
from attention_residuals.dialects.depth_files import load_depth, save_depth
from attention_residuals.dialects.dialect import Dialect
from attention_residuals.dialects.fla import FLA
from attention_residuals.dialects.kimi import KIMI
from attention_residuals.dialects.models import load, save
from attention_residuals.dialects.ours import OURS
from attention_residuals.dialects.registry import DEPTH_DIALECTS, DIALECTS, dialect_of, find_dialect
from attention_residuals.dialects.writing import SHARD_BYTES
from attention_residuals.models import Decoder

__all__ = [
    "DEPTH_DIALECTS",
    "DIALECTS",
    "FLA",
    "KIMI",
    "OURS",
    "SHARD_BYTES",
    "DepthDialect",
    "DepthPart",
    "Dialect",
    "depth_of",
    "dialect_of",
    "find_dialect",
    "is_depth",
    "load",
    "load_depth",
    "load_kimi",
    "save",
    "save_depth",
    "save_kimi",
]


def load_kimi(folder: Path | str, *, dtype: torch.dtype | None = None) -> Decoder:
    """The model of a folder under the names of Kimi Linear, Kimi K3 or the `kimi_linear` of transformers; see `load`.

    `attn_res_block_size` counts layers, so it becomes `AttnRes(Layers(n))`; without it the residual is `Additive`.
    """
    return load(folder, KIMI, dtype=dtype)


def save_kimi(model: Decoder, folder: Path | str, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a model under the published names of Kimi Linear, with those of K3 for depth attention; see `save`.

    What is loaded back has the same config and the same bits. transformers loads it too, without depth attention.
    """
    save(model, folder, KIMI, shard_bytes=shard_bytes)
