"""Whole models from folders and to folders, in any dialect."""

from pathlib import Path

import torch

from attention_residuals.dialects.audit import matched, require_depth
from attention_residuals.dialects.dialect import Dialect
from attention_residuals.dialects.names import Use
from attention_residuals.dialects.reading import CONFIG, TYPES, read_config, stored_tensors
from attention_residuals.dialects.registry import dialect_of, unknown
from attention_residuals.dialects.transfer import pieces_of, read_tensors
from attention_residuals.dialects.writing import SHARD_BYTES, require_shard, write_folder
from attention_residuals.errors import InputError
from attention_residuals.models import Decoder
from attention_residuals.models.meta import without_values


def load(folder: Path | str, dialect: Dialect | None = None, *, dtype: torch.dtype | None = None) -> Decoder:
    """The model of a folder, in evaluation mode, on the CPU.

    Weights are read tensor by tensor: beside the model there is never more than one of its tensors.

    Args:
        folder: one with a `config.json`, and `model.safetensors` or files of it with an index.
        dialect: what it is written in; None: what its config says.
        dtype: of all parameters; None: each as it is in the file. Biases of routers are float32 in any case.

    Raises:
        InputError: a config that is missing, foreign or of no sense; weights that are missing, damaged, quantised, not
            finite, or of another model than the config. All of it but the last is found before any tensor is read.
    """
    folder = Path(folder)
    if dtype not in (None, *TYPES.values()):
        raise InputError(
            f"dtype is {dtype}; choose float64, float32, float16 or bfloat16, or None for that of the file"
        )
    plain = read_config(folder)
    dialect = dialect_of(plain) if dialect is None else dialect
    if dialect is None:
        raise unknown(folder / CONFIG, plain)
    with without_values():
        model = Decoder(dialect.from_plain(plain))
    ours, stored = model.state_dict(), stored_tensors(folder, dialect.names.plain)
    rules = dialect.names.expand(model.config, ours)
    found = [name for name in stored if dialect.names.of_depth(name)]
    wanted = any(dialect.names.of_depth(name) for rule in rules for name in rule.theirs)
    require_depth(folder, found, wanted)
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    rules = matched(folder, rules, ours, shapes, model.embedding.weight)
    float32 = frozenset(name for name, _ in model.named_buffers())
    model.load_state_dict(read_tensors(folder, rules, ours, stored, dtype, float32), assign=True)
    return model.eval()


def save(model: Decoder, folder: Path | str, dialect: Dialect, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a model, every tensor with the type it has; the folder appears when all of it is on the disk.

    Raises:
        InputError: a model that the dialect cannot tell, parts of one tensor there that have several types here, a
            folder that exists or cannot be written.
    """
    require_shard(shard_bytes)
    folder = Path(folder)
    ours = model.state_dict()
    config = dialect.to_plain(model.config, str(model.embedding.weight.dtype).removeprefix("torch."))
    pieces = [
        piece
        for rule in dialect.names.expand(model.config, ours)
        if rule.use is not Use.READ
        for piece in pieces_of(rule, ours, model.embedding.weight)
    ]
    write_folder(folder, config, pieces, shard_bytes)
