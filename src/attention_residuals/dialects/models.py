"""Whole models from folders and to folders, in any dialect."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from attention_residuals.dialects.audit import matched, require_depth, require_finite
from attention_residuals.dialects.dialect import Dialect
from attention_residuals.dialects.names import Rule, Use, their_forms
from attention_residuals.dialects.reading import CONFIG, TYPES, Stored, read_config, stored_tensors
from attention_residuals.dialects.registry import DIALECTS, dialect_of
from attention_residuals.dialects.writing import SHARD_BYTES, Piece, write_folder
from attention_residuals.errors import InputError, is_count
from attention_residuals.models import Decoder


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
        known = ", ".join(f"{one.name} ({one.summary})" for one in DIALECTS.values())
        raise InputError(f"{folder / CONFIG} is of no dialect that is known; there are {known}")
    with torch.device("meta"):
        model = Decoder(dialect.from_plain(plain))
    ours, stored = model.state_dict(), stored_tensors(folder, dialect.names.plain)
    rules = dialect.names.expand(model.config, ours)
    found = [name for name in stored if dialect.names.of_depth(name)]
    wanted = any(dialect.names.of_depth(name) for rule in rules for name in rule.theirs)
    require_depth(folder, found, wanted)
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    rules = matched(folder, rules, ours, shapes, model.embedding.weight)
    model.load_state_dict(_read(folder, rules, model, stored, dtype), assign=True)
    return model.eval()


def save(model: Decoder, folder: Path | str, dialect: Dialect, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a model, every tensor with the type it has; the folder appears when all of it is on the disk.

    Raises:
        InputError: a model that the dialect cannot tell, parts of one tensor there that have several types here, a
            folder that exists or cannot be written.
    """
    if not is_count(shard_bytes):
        raise InputError(f"shard_bytes is {shard_bytes!r}; it must be a whole number of at least 1")
    folder = Path(folder)
    ours = model.state_dict()
    config = dialect.to_plain(model.config, str(model.embedding.weight.dtype).removeprefix("torch."))
    pieces = [
        piece
        for rule in dialect.names.expand(model.config, ours)
        if rule.use is not Use.READ
        for piece in _pieces(rule, ours, model.embedding.weight)
    ]
    write_folder(folder, config, pieces, shard_bytes)


def _read(
    folder: Path, rules: Sequence[Rule], model: Decoder, stored: Mapping[str, Stored], dtype: torch.dtype | None
) -> dict[str, Tensor]:
    """The model's tensors, in memory of their own."""
    ours, fixed = model.state_dict(), {name for name, _ in model.named_buffers()}
    found: dict[str, Tensor] = {}
    bad: list[str] = []
    for rule in rules:
        theirs = [stored[name].read() for name in rule.theirs]
        if rule.use is Use.COPY:
            _require_same(folder, rule, found[rule.ours[0]], theirs[0])
            continue
        shapes = [ours[name].shape for name in rule.ours]
        for name, tensor in zip(rule.ours, rule.layout.ours(theirs, shapes) if shapes else (), strict=True):
            kind = ours[name].dtype if name in fixed else dtype or tensor.dtype
            found[name] = torch.empty(tensor.shape, dtype=kind).copy_(tensor)
            if not found[name].isfinite().all():
                bad.extend(rule.theirs[:1])
    require_finite(folder, bad)
    return found


def _require_same(folder: Path, rule: Rule, mine: Tensor, theirs: Tensor) -> None:
    if not torch.equal(mine, theirs.to(mine.dtype)):
        raise InputError(
            f"{folder} says that its embeddings are tied, and {rule.theirs[0]} has other numbers; set "
            "tie_word_embeddings to false in its config if that is meant"
        )


def _pieces(rule: Rule, ours: Mapping[str, Tensor], embedding: Tensor) -> list[Piece]:
    """The tensors that a rule writes."""
    kinds = {ours[name].dtype for name in rule.ours}
    if len(kinds) > 1:
        raise InputError(f"{', '.join(rule.ours)} are one tensor there, and have {len(kinds)} types; give them one")

    def make(n: int) -> Tensor:
        if rule.unused is not None and not rule.ours:
            return torch.full_like(forms[n], rule.unused, device="cpu")
        tensors = rule.layout.theirs([ours[name].detach() for name in rule.ours])
        return tensors[n].to("cpu", copy=True).contiguous()

    forms = their_forms(rule, ours, embedding)
    return [
        Piece(name, form.nbytes, partial(make, n))
        for n, (name, form) in enumerate(zip(rule.theirs, forms, strict=True))
    ]
