"""Whether a file holds exactly the tensors of a model: each is used or known to be unused, or there is an error."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from attention_residuals.dialects.names import Rule, Use, their_forms
from attention_residuals.errors import InputError

SHOWN = 3
"""Names a message lists before it counts the rest."""


def matched(
    folder: Path,
    rules: Sequence[Rule],
    ours: Mapping[str, Tensor],
    shapes: Mapping[str, tuple[int, ...]],
    embedding: Tensor,
) -> list[Rule]:
    """The rules to load by: each of our tensors by one of them, and each of the file's tensors in one of them.

    Args:
        folder: what messages call the file.
        rules: those of the dialect for this model.
        ours: the model's tensors; their values do not matter.
        shapes: what the file has.
        embedding: that of the model, for the width.

    Raises:
        InputError: it names the first tensors that are missing, unexpected or of another shape, and how many there are.
    """
    chosen = _chosen(rules, shapes.keys())
    expected = {
        name: form.shape
        for rule in chosen
        for name, form in zip(rule.theirs, their_forms(rule, ours, embedding), strict=True)
    }
    optional = {name for rule in rules if rule.use is Use.COPY for name in rule.theirs}
    parts = [
        _listed("lacks", [name for name in expected if name not in shapes and name not in optional]),
        _listed("has unexpected", [name for name in shapes if name not in expected]),
        _listed("differs in", [_difference(name, shapes, shape) for name, shape in expected.items()]),
    ]
    if any(parts):
        raise InputError(
            f"{folder} is of another model than its config: it {', '.join(part for part in parts if part)}; bring the "
            "weights and the config of one model together"
        )
    return [rule for rule in chosen if rule.use is not Use.COPY or rule.theirs[0] in shapes]


def require_depth(folder: Path, depth_names: Sequence[str], asked: bool) -> None:
    """Refuse depth attention in the config alone, or in the weights alone: it would be left out without a word.

    Raises:
        InputError: one has it and the other has not.
    """
    if asked and not depth_names:
        raise InputError(
            f"{folder} asks for depth attention, and its weights have none of its tensors; take the block size out of "
            "the config, or bring the weights that belong to it"
        )
    if depth_names and not asked:
        raise InputError(
            f"{_listed(f'{folder} has', depth_names)}, tensors of depth attention, and its config has no block size: "
            "without it they would mean nothing; bring back the config that was saved"
        )


def require_unchanged(folder: Path, changed: Sequence[str]) -> None:
    """Refuse tensors whose bytes are not those that were written.

    Raises:
        InputError: there are some; it names the first.
    """
    if changed:
        raise InputError(
            f"{_listed(f'{folder} has other numbers than were written in', changed)}; copy it again, or save it anew "
            "from where the numbers were changed on purpose"
        )


def require_finite(folder: Path, bad: Sequence[str]) -> None:
    """Refuse weights that are not numbers.

    Raises:
        InputError: there are some; it names the first.
    """
    if bad:
        raise InputError(
            f"{_listed(f'{folder} has NaN or infinite values in', bad)}; use weights from before they broke"
        )


def _chosen(rules: Sequence[Rule], there: Collection[str]) -> list[Rule]:
    """Rules whose names the file has; where it has none of a tensor's names, those that would have been written."""
    normal = [rule for rule in rules if rule.use is not Use.READ]
    other = [rule for rule in rules if rule.use is Use.READ and _has(rule, there)]
    taken = {name for rule in normal if rule.use is Use.NORMAL and _has(rule, there) for name in rule.ours}
    replaced: set[str] = set()
    chosen = []
    for rule in other:
        if not taken & set(rule.ours):
            taken |= set(rule.ours)
            replaced |= set(rule.ours)
            chosen.append(rule)
    return [rule for rule in normal if not replaced & set(rule.ours) or rule.use is Use.COPY] + chosen


def _has(rule: Rule, there: Collection[str]) -> bool:
    return any(name in there for name in rule.theirs)


def _difference(name: str, shapes: Mapping[str, tuple[int, ...]], shape: torch.Size) -> str | None:
    if name not in shapes or shapes[name] == tuple(shape):
        return None
    return f"{name} ({list(shapes[name])}, by the config {list(shape)})"


def _listed(what: str, names: Sequence[str | None]) -> str:
    """The first names after `what`, and how many more there are; empty if there are none."""
    names = [name for name in names if name is not None]
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{what} {', '.join(names[:SHOWN])}{rest}" if names else ""
