"""A corpus: its sources, and for each document what the later passes need to know, some 40 bytes."""

import hashlib
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Int, UInt8

from attention_residuals.errors import InputError
from attention_residuals.train.text.documents import NUL, Document
from attention_residuals.train.text.progress import Progress, silent
from attention_residuals.train.text.sources import Source

DIGEST_BYTES = 32


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents by their number in reading order.

    `digests`: SHA-256 of each. `lengths`: bytes of each. `kept`: whether it is text that was not there before.
    """

    sources: tuple[Source, ...]
    digests: UInt8[np.ndarray, "documents 32"]
    lengths: Int[np.ndarray, "documents"]
    kept: Bool[np.ndarray, "documents"]

    @cached_property
    def by_digest(self) -> Int[np.ndarray, "kept"]:
        """Numbers of the kept documents in the order of their digests, which no name or order of files changes."""
        return self._sorted[self.kept[self._sorted]]

    @cached_property
    def _sorted(self) -> Int[np.ndarray, "documents"]:
        return order_of_digests(self.digests)

    @cached_property
    def fingerprint(self) -> str:
        """One hash for the set of kept documents, whatever their order."""
        found = hashlib.sha256()
        for number in self.by_digest:
            found.update(self.digests[number].tobytes().hex().encode())
        return found.hexdigest()[:16]

    @cached_property
    def order_fingerprint(self) -> str:
        """One hash for the sequence of kept documents: what a stream of their tokens is a function of."""
        return hashlib.sha256(self.digests[self.kept].tobytes()).hexdigest()

    @cached_property
    def total_bytes(self) -> int:
        """Bytes of the kept documents."""
        return int(self.lengths[self.kept].sum())

    def __len__(self) -> int:
        return int(self.kept.sum())

    def documents(self) -> Iterator[tuple[int, Document]]:
        """Walk the kept documents with their numbers.

        Raises:
            InputError: there are now more or fewer documents than when the corpus was surveyed.
        """
        number = -1
        for number, document in enumerate(document for source in self.sources for document in source.documents()):
            if number >= len(self.kept):
                raise changed(document.name)
            if self.kept[number]:
                yield number, document
        if number + 1 != len(self.kept):
            raise changed(", ".join(source.name for source in self.sources))


def changed(name: str) -> InputError:
    """The error for text that is no longer what it was a moment ago."""
    return InputError(f"{name} changed while it was being read; start again when nothing writes to it")


def survey(sources: Sequence[Source], progress: Progress = silent) -> Corpus:
    """Read everything once: which documents there are, which of them are text, and each text once.

    Raises:
        InputError: a source without text; or what a source finds wrong with itself.
    """
    digests, lengths, text = bytearray(), array("q"), bytearray()
    done = 0
    for source in sources:
        documents_before = len(text)
        for document in source.documents():
            digest, length, binary = _identify(document)
            digests += digest
            lengths.append(length)
            text.append(not binary and (length > 0 or source.keeps_empty))
            done += length
            progress("reading", done, None)
        if not any(text[documents_before:]):
            raise InputError(f"{source.name} holds no text; name files or folders with text or code in them")
    found = np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES)
    kept = np.frombuffer(text, np.bool_) & _first_of_its_kind(found)
    return Corpus(tuple(sources), found, np.frombuffer(lengths, np.int64), kept)


def _identify(document: Document) -> tuple[bytes, int, bool]:
    """Digest, bytes, and whether the document is binary."""
    digest, length, binary = hashlib.sha256(), 0, False
    for piece in document.pieces:
        digest.update(piece)
        length += len(piece)
        binary = binary or NUL in piece
    return digest.digest(), length, binary


def order_of_digests(digests: UInt8[np.ndarray, "documents 32"]) -> Int[np.ndarray, "documents"]:
    """Numbers of the documents by digest; equal digests stay in reading order."""
    words = digests.view(">u8")  # big-endian: the order of the numbers is the order of the bytes
    return np.lexsort(words.T[::-1])


def _first_of_its_kind(digests: UInt8[np.ndarray, "documents 32"]) -> Bool[np.ndarray, "documents"]:
    order = order_of_digests(digests)
    repeats = (digests[order[1:]] == digests[order[:-1]]).all(-1)
    first = np.ones(len(digests), np.bool_)
    first[order[1:][repeats]] = False
    return first
