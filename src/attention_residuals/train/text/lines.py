"""How much of a document stands in other documents too, by the hashes of its longer lines."""

import hashlib
from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from attention_residuals.train.text.corpus import Corpus
from attention_residuals.train.text.documents import PIECE_BYTES
from attention_residuals.train.text.progress import Progress
from attention_residuals.train.text.workers import ordered_map

SHORT_LINE_BYTES = 20
"""Shorter lines (`else:`, `return True`) are common property and say nothing about copying."""

ALL_LINES_BYTES = 64 << 20
"""Of more text than this only a sample of the lines is compared: those whose hash is a multiple of a number."""

Job = list[tuple[int, bytes]]
Hashes = tuple[np.ndarray, np.ndarray]


def shared_text(
    corpus: Corpus, candidates: Bool[np.ndarray, "documents"], workers: int, progress: Progress
) -> Float[np.ndarray, "documents"]:
    """For each candidate, the share of its bytes in long lines that stand in another document too; else 0.

    Reads the candidates for their lines, then everything for who else has them. Memory is that of the hashes of the
    candidates' lines, which are all lines up to `ALL_LINES_BYTES` of candidates and a sample of about as many above.
    """
    every = 1 + int(corpus.lengths[candidates].sum()) // ALL_LINES_BYTES
    owners, hashes, lengths = _lines_of_candidates(corpus, candidates, every, workers)
    known = np.unique(hashes)
    holders = _count_holders(corpus, known, every, workers, progress)
    shared = holders[np.searchsorted(known, hashes)] > 1
    total = np.bincount(owners, lengths, len(corpus.lengths))
    return np.bincount(owners, lengths * shared, len(corpus.lengths)) / np.maximum(total, 1)


def _lines_of_candidates(
    corpus: Corpus, candidates: Bool[np.ndarray, "documents"], every: int, workers: int
) -> tuple[Int[np.ndarray, "lines"], UInt64[np.ndarray, "lines"], Int[np.ndarray, "lines"]]:
    """Owner, hash and bytes of each distinct line of each candidate."""
    owners, hashes, lengths = [np.empty(0, np.int32)], [np.empty(0, np.uint64)], [np.empty(0, np.int32)]
    for job, found in ordered_map(hash_lines, every, _jobs(corpus, candidates), workers):
        for (number, _), (some, sizes) in zip(job, found, strict=True):
            owners.append(np.full(len(some), number, np.int32))
            hashes.append(some)
            lengths.append(sizes)
    owner, line, length = np.concatenate(owners), np.concatenate(hashes), np.concatenate(lengths)
    order = np.lexsort((line, owner))
    owner, line, length = owner[order], line[order], length[order]
    # A line that stands in two pieces of one document is still one line of it.
    new = np.ones(len(line), np.bool_)
    new[1:] = (owner[1:] != owner[:-1]) | (line[1:] != line[:-1])
    return owner[new], line[new], length[new]


def _count_holders(
    corpus: Corpus, known: UInt64[np.ndarray, "known"], every: int, workers: int, progress: Progress
) -> Int[np.ndarray, "known"]:
    """In how many documents each known line stands."""
    holders = np.zeros(len(known), np.int32)
    latest = np.full(len(known), -1, np.int64)  # the document that last counted, so that none counts twice
    done = 0
    for job, found in ordered_map(hash_lines, every, _jobs(corpus, corpus.kept), workers):
        for (number, piece), (some, _) in zip(job, found, strict=True):
            places = np.searchsorted(known, some)
            places = places[known[np.minimum(places, len(known) - 1)] == some] if len(known) else places[:0]
            places = places[latest[places] != number]
            latest[places] = number
            holders[places] += 1
            done += len(piece)
        progress("comparing lines", done, corpus.total_bytes)
    return holders


def hash_lines(every: int, job: Job) -> list[Hashes]:
    """Hash and bytes of each distinct long line of each piece, kept where the hash is a multiple of `every`."""
    return [_hash_lines(piece, every) for _, piece in job]


def _hash_lines(piece: bytes, every: int) -> Hashes:
    lines = list({line for raw in piece.split(b"\n") if len(line := raw.strip()) >= SHORT_LINE_BYTES})
    digests = b"".join(hashlib.blake2b(line, digest_size=8).digest() for line in lines)
    hashes = np.frombuffer(digests, np.uint64)
    lengths = np.fromiter(map(len, lines), np.int32, len(lines))
    sampled = hashes % np.uint64(every) == 0
    return hashes[sampled], lengths[sampled]


def _jobs(corpus: Corpus, chosen: Bool[np.ndarray, "documents"]) -> Iterator[Job]:
    """The pieces of the chosen documents with the documents' numbers, about `PIECE_BYTES` at a time."""
    job: Job = []
    size = 0
    for number, document in corpus.documents():
        if not chosen[number]:
            continue
        for piece in document.pieces:
            job.append((number, piece))
            size += len(piece)
            if size >= PIECE_BYTES:
                yield job
                job, size = [], 0
    if job:
        yield job
