"""The numbers themselves, by rules that were found to fit: out of files into memory, and into pieces to be written."""

from collections.abc import Container, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from attention_residuals.dialects.audit import require_finite, require_unchanged
from attention_residuals.dialects.digests import digest
from attention_residuals.dialects.names import Rule, Use, their_forms
from attention_residuals.dialects.reading import Stored
from attention_residuals.dialects.writing import Piece
from attention_residuals.errors import InputError


def read_tensors(
    folder: Path,
    rules: Sequence[Rule],
    ours: Mapping[str, Tensor],
    stored: Mapping[str, Stored],
    dtype: torch.dtype | None,
    fixed: Container[str] = (),
) -> dict[str, Tensor]:
    """Our tensors, in memory of their own.

    Args:
        folder: what messages call the file.
        rules: those of `matched`.
        ours: their shapes, and for `fixed` their types.
        stored: what the file has.
        dtype: of all but `fixed`; None: as in the file.
        fixed: names of tensors that have one type whatever the rest has.

    Raises:
        InputError: values that are not finite or not those that were written, or a copy with other numbers.
    """
    found: dict[str, Tensor] = {}
    bad: list[str] = []
    changed: list[str] = []
    for rule in rules:
        theirs = [stored[name].read() for name in rule.theirs]
        changed.extend(name for name, tensor in zip(rule.theirs, theirs, strict=True) if _differs(stored[name], tensor))
        if rule.use is Use.COPY:
            _require_same(folder, rule, found[rule.ours[0]], theirs[0])
            continue
        shapes = [ours[name].shape for name in rule.ours]
        for name, tensor in zip(rule.ours, rule.layout.ours(theirs, shapes) if shapes else (), strict=True):
            kind = ours[name].dtype if name in fixed else dtype or tensor.dtype
            found[name] = torch.empty(tensor.shape, dtype=kind).copy_(tensor)
            if not found[name].isfinite().all():
                bad.extend(rule.theirs[:1])
    require_unchanged(folder, changed)
    require_finite(folder, bad)
    return found


def _differs(stored: Stored, tensor: Tensor) -> bool:
    return stored.digest is not None and stored.digest != digest(tensor)


def _require_same(folder: Path, rule: Rule, mine: Tensor, theirs: Tensor) -> None:
    if not torch.equal(mine, theirs.to(mine.dtype)):
        raise InputError(
            f"{folder} says that its embeddings are tied, and {rule.theirs[0]} has other numbers; set "
            "tie_word_embeddings to false in its config if that is meant"
        )


def pieces_of(rule: Rule, ours: Mapping[str, Tensor], embedding: Tensor) -> list[Piece]:
    """The tensors that a rule writes; `embedding` is for the width and the type of unused ones.

    Raises:
        InputError: parts of one tensor there have several types here.
    """
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
