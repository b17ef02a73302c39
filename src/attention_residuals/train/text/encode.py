"""Tokenise a split corpus into files: tokens of each side, and where each document ends."""

from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.train.text.corpus import Corpus
from attention_residuals.train.text.documents import PIECE_BYTES
from attention_residuals.train.text.progress import Progress
from attention_residuals.train.text.split import Side, SidePiece, Split, side_pieces
from attention_residuals.train.text.tokenizer import Tokenizer, invalid_sequences
from attention_residuals.train.text.workers import ordered_map

Job = list[SidePiece]


class SideWriter:
    """Writes the tokens of one side as they come; holds one number a document and the counts of each token."""

    def __init__(self, file: BinaryIO, tokenizer: Tokenizer):
        self._file = file
        self._dtype = tokenizer.dtype.newbyteorder("<")
        self._separator = np.array([tokenizer.separator], self._dtype)
        self.ends = array("q")
        self.tokens = self.text_bytes = 0
        self.counts = np.zeros(tokenizer.vocab_size, np.int64)

    def add(self, piece: SidePiece, tokens: np.ndarray) -> None:
        """Append the tokens of a piece, and the separator if it closes its document."""
        self._write(tokens)
        self.text_bytes += len(piece.data)
        if piece.closes:
            self._write(self._separator)
            self.text_bytes += 1  # the end of a text counts as one byte, whatever the tokenizer
            self.ends.append(self.tokens)

    def _write(self, tokens: np.ndarray) -> None:
        self._file.write(tokens.astype(self._dtype, copy=False).tobytes())
        self.tokens += len(tokens)
        self.counts += np.bincount(tokens, minlength=len(self.counts))


def encode_corpus(
    corpus: Corpus, split: Split, tokenizer: Tokenizer, folder: Path, *, workers: int, progress: Progress
) -> dict[str, int | float | str]:
    """Write `SIDE.tokens` and `SIDE.ends` for both sides to `folder`; returns what there is to say about them.

    Ends are int64, the place just after each document's separator.

    Raises:
        InputError: a corpus of which no validation text can be taken, or one that changes meanwhile.
    """
    invalid = done = 0
    with (
        (folder / "training.tokens").open("wb") as training,
        (folder / "validation.tokens").open("wb") as validation,
    ):
        writers = {Side.TRAINING: SideWriter(training, tokenizer), Side.VALIDATION: SideWriter(validation, tokenizer)}
        for job, (encoded, replaced) in ordered_map(_encode, tokenizer, _jobs(corpus, split), workers):
            invalid += replaced
            for piece, tokens in zip(job, encoded, strict=True):
                writers[piece.side].add(piece, tokens)
                done += len(piece.data)
            progress("tokenising", done, corpus.total_bytes)
    if not writers[Side.VALIDATION].tokens:
        raise InputError(
            f"the split leaves no validation text: {corpus.total_bytes} bytes in {len(corpus)} documents, of which "
            f"{split.validation_share:.0%} cannot be cut off at a line end; give more text"
        )
    about: dict[str, int | float | str] = {"split": split.rule, "invalid_utf8_replaced": invalid}
    for side, writer in writers.items():
        name = side.name.lower()
        (folder / f"{name}.ends").write_bytes(np.array(writer.ends, "<i8").tobytes())
        about |= {f"{name}_bytes": writer.text_bytes, f"{name}_tokens": writer.tokens}
    about["unigram_entropy"] = entropy(torch.from_numpy(writers[Side.TRAINING].counts))
    return about


def entropy(counts: Int[Tensor, "vocabulary"]) -> float:
    """Entropy in nats a token of token frequencies alone: what a model that ignores context can reach."""
    present = counts[counts > 0].double()
    shares = present / present.sum()
    return float(-(shares * shares.log()).sum())


def _encode(tokenizer: Tokenizer, job: Job) -> tuple[list[np.ndarray], int]:
    texts = [piece.data for piece in job]
    replaced = sum(map(invalid_sequences, texts)) if tokenizer.replaces_invalid else 0
    return tokenizer.encode_batch(texts), replaced


def _jobs(corpus: Corpus, split: Split) -> Iterator[Job]:
    """Pieces in reading order, about `PIECE_BYTES` at a time."""
    job: Job = []
    size = 0
    for piece in side_pieces(corpus, split):
        job.append(piece)
        size += len(piece.data)
        if size >= PIECE_BYTES:
            yield job
            job, size = [], 0
    if job:
        yield job
