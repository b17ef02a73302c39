"""Training and validation text without leakage."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from jaxtyping import Bool, UInt8

from attention_residuals.errors import InputError
from attention_residuals.train.text.corpus import Corpus, changed
from attention_residuals.train.text.documents import Document
from attention_residuals.train.text.lines import shared_text
from attention_residuals.train.text.progress import Progress, silent

SHARED_LIMIT = 0.25
"""A document with more than this share of its text standing in others too is kept out of validation."""

CANDIDATE_BYTES = 64 << 20
"""Validation is chosen among the first documents by digest, this much text or twice what is wanted."""


class Side(IntEnum):
    """What a text is for."""

    TRAINING = 0
    VALIDATION = 1


@dataclass(frozen=True, eq=False)
class Split:
    """A side for each document, or the end of each one for validation; `rule` says in words which."""

    sides: UInt8[np.ndarray, "documents"] | None
    validation_share: float
    rule: str


@dataclass(frozen=True, eq=False)
class SidePiece:
    """Running text of one side; `closes` is true where the document, or its part on this side, ends."""

    side: Side
    data: bytes
    closes: bool


def require_share(validation_share: float) -> None:
    """Refuse a share that leaves one side without text.

    Raises:
        InputError: it does not lie between 0 and 1.
    """
    if not 0 < validation_share < 1:
        raise InputError(f"validation share is {validation_share}; it must lie between 0 and 1, for example 0.05")


def split_corpus(corpus: Corpus, validation_share: float, *, workers: int = 1, progress: Progress = silent) -> Split:
    """Put about `validation_share` of the bytes aside.

    Whole documents go to validation, chosen by the hash of their content and only if their lines hardly occur in other
    documents. Where documents are too few or too large for that, the end of each one is taken, cut at a line end. The
    choice is a function of the set of documents: neither names nor order play a part.

    Raises:
        InputError: a share outside (0, 1).
    """
    require_share(validation_share)
    target = validation_share * corpus.total_bytes
    candidates = _candidates(corpus, target)
    if candidates.any():
        shared = shared_text(corpus, candidates, workers, progress)
        chosen = _choose(corpus, candidates & (shared <= SHARED_LIMIT), target)
        if corpus.lengths[chosen].sum() >= max(1, target / 2):
            rule = f"{chosen.sum()} of {len(corpus)} documents held out"
            return Split(chosen.astype(np.uint8), validation_share, rule)
    return Split(None, validation_share, f"the last {validation_share:.0%} of each of {len(corpus)} documents held out")


def _candidates(corpus: Corpus, target: float) -> Bool[np.ndarray, "documents"]:
    """Documents of which one alone would not be too much, up to a limit, first digests first."""
    numbers = corpus.by_digest
    within = np.cumsum(corpus.lengths[numbers]) <= max(CANDIDATE_BYTES, 2 * target)
    candidates = np.zeros(len(corpus.kept), np.bool_)
    candidates[numbers[within & (corpus.lengths[numbers] <= target)]] = True
    return candidates


def _choose(corpus: Corpus, allowed: Bool[np.ndarray, "documents"], target: float) -> Bool[np.ndarray, "documents"]:
    """Of the allowed documents by digest each one that still fits into `target` bytes."""
    chosen = np.zeros(len(corpus.kept), np.bool_)
    size = 0
    for number in corpus.by_digest[allowed[corpus.by_digest]]:
        length = int(corpus.lengths[number])
        if size + length <= target:
            chosen[number] = True
            size += length
    return chosen


def side_pieces(corpus: Corpus, split: Split) -> Iterator[SidePiece]:
    """All text in reading order, piece by piece, each on its side.

    Raises:
        InputError: a document that is not what it was when the corpus was surveyed.
    """
    for number, document in corpus.documents():
        length = int(corpus.lengths[number])
        checked = _checked(document, corpus.digests[number].tobytes())
        if split.sides is None:
            yield from _cut_off_end(checked, length, split.validation_share)
        else:
            yield from _whole(checked, length, Side(split.sides[number]))


def _whole(pieces: Iterator[bytes], length: int, side: Side) -> Iterator[SidePiece]:
    done = 0
    for piece in pieces:
        done += len(piece)
        yield SidePiece(side, piece, closes=done == length)
    if length == 0:
        yield SidePiece(side, b"", closes=True)


def _cut_off_end(pieces: Iterator[bytes], length: int, share: float) -> Iterator[SidePiece]:
    """Training text up to the first line end after the share, validation text from there; all training if none."""
    earliest, done, side = int(length * (1 - share)), 0, Side.TRAINING
    for piece in pieces:
        end = done + len(piece)
        if side is Side.TRAINING:
            cut = piece.find(b"\n", max(0, earliest - done)) + 1
            if cut > 0 and done + cut < length:
                yield SidePiece(Side.TRAINING, piece[:cut], closes=True)
                side, piece = Side.VALIDATION, piece[cut:]
        if piece:
            yield SidePiece(side, piece, closes=end == length)
        done = end
    if length == 0:
        yield SidePiece(side, b"", closes=True)


def _checked(document: Document, digest: bytes) -> Iterator[bytes]:
    found = hashlib.sha256()
    for piece in document.pieces:
        found.update(piece)
        yield piece
    if found.digest() != digest:
        raise changed(document.name)
