"""Training and validation text without leakage."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from attention_residuals.errors import InputError
from attention_residuals.train.corpus import SEPARATOR, Document

SHORT_LINE_BYTES = 20
"""Shorter lines (`else:`, `return True`) are common property and say nothing about copying."""

SHARED_LIMIT = 0.25
"""A document with more than this share of its text standing in others too is kept out of validation."""


@dataclass(frozen=True)
class Split:
    """Training and validation text as byte streams, every document closed by `SEPARATOR`, and how they were made."""

    train: bytes
    validation: bytes
    rule: str


def split_documents(documents: Sequence[Document], validation_share: float) -> Split:
    """Put about `validation_share` of the bytes aside.

    Whole documents go to validation, chosen by the hash of their content and only if their lines hardly occur in other
    documents. Where documents are too few or too large for that, the end of each one is taken, cut at a line end.

    Raises:
        InputError: a share outside (0, 1), or a corpus of which no validation text can be taken.
    """
    if not 0 < validation_share < 1:
        raise InputError(f"validation share is {validation_share}; it must lie between 0 and 1, for example 0.05")
    held_out = _whole_documents(documents, validation_share)
    if held_out:
        kept = [document.data for document in documents if document not in held_out]
        apart = [document.data for document in documents if document in held_out]
        rule = f"{len(apart)} of {len(documents)} documents held out"
    else:
        kept, apart = _tails(documents, validation_share)
        rule = f"the last {validation_share:.0%} of each of {len(documents)} documents held out"
    if not apart:
        raise InputError(
            f"the split leaves no validation text: {sum(len(d.data) for d in documents)} bytes in {len(documents)} "
            f"documents, of which {validation_share:.0%} cannot be cut off at a line end; give more text"
        )
    return Split(_joined(kept), _joined(apart), rule)


def _whole_documents(documents: Sequence[Document], share: float) -> set[Document]:
    """Documents for validation, at most `share` of the bytes; none if that leaves less than half of it."""
    target = share * sum(len(document.data) for document in documents)
    shared = _shared_text(documents)
    chosen: set[Document] = set()
    size = 0
    for document in sorted(documents, key=lambda document: document.digest):
        fits = size + len(document.data) <= target
        if fits and shared[document.name, document.digest] <= SHARED_LIMIT:
            chosen.add(document)
            size += len(document.data)
    return chosen if size >= target / 2 else set()


def _shared_text(documents: Sequence[Document]) -> dict[tuple[str, str], float]:
    """For each document, the share of its bytes in lines that stand in another document too."""
    lines = {(document.name, document.digest): _long_lines(document.data) for document in documents}
    holders = Counter(line for found in lines.values() for line in found)
    shares = {}
    for key, found in lines.items():
        total = sum(map(len, found))
        shares[key] = sum(len(line) for line in found if holders[line] > 1) / total if total else 0.0
    return shares


def _long_lines(data: bytes) -> set[bytes]:
    return {line for raw in data.split(b"\n") if len(line := raw.strip()) >= SHORT_LINE_BYTES}


def _tails(documents: Sequence[Document], share: float) -> tuple[list[bytes], list[bytes]]:
    kept, apart = [], []
    for document in documents:
        cut = document.data.find(b"\n", int(len(document.data) * (1 - share))) + 1
        if 0 < cut < len(document.data):
            kept.append(document.data[:cut])
            apart.append(document.data[cut:])
        else:
            kept.append(document.data)
    return kept, apart


def _joined(texts: Sequence[bytes]) -> bytes:
    return b"".join(text + SEPARATOR for text in texts)
