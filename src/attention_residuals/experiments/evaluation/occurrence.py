"""Whether pieces of text stand verbatim in another text, by one pass over its tokens. Knows no torch."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Int64, UInt, UInt64

GRAM_TOKENS = 16
"""Tokens of a piece that are looked for first."""

CHUNK_TOKENS = 1 << 22
"""Tokens in memory at once."""

MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""An odd number without pattern (2^64 over the golden ratio), so that sums of its powers spread over all bits."""

BUCKET_BITS = np.uint64(20)


def occur(
    text: UInt[np.ndarray, "tokens"],
    pieces: Sequence[UInt[np.ndarray, "_"]],
    gram_tokens: int = GRAM_TOKENS,
    chunk_tokens: int = CHUNK_TOKENS,
) -> list[bool]:
    """For each piece, whether its tokens stand in `text` in a row. Pieces are of one token at least.

    Of each piece one gram is hashed, that with the most different tokens, and where the text has that hash the whole
    piece is compared. Time grows with the text and hardly with the number of pieces.
    """
    assert all(len(piece) for piece in pieces)
    found = [False] * len(pieces)
    sizes = [1 << (min(gram_tokens, len(piece)).bit_length() - 1) for piece in pieces]  # hashing doubles
    for size in sorted(set(sizes)):
        group = [n for n in range(len(pieces)) if sizes[n] == size]
        offsets = {n: _rarest(pieces[n], size) for n in group}
        wanted = {n: _hashes(pieces[n][offsets[n] : offsets[n] + size], size)[0] for n in group}
        for places, hashes in _candidates(text, np.unique(list(wanted.values())), size, chunk_tokens):
            for n in group:
                begins = places[hashes == wanted[n]] - offsets[n]
                found[n] = found[n] or _stands_at(text, pieces[n], begins)
    return found


def _rarest(piece: UInt[np.ndarray, "_"], size: int) -> int:
    """Where in a piece its least monotonous gram begins: runs of blanks stand everywhere."""
    return max(range(len(piece) - size + 1), key=lambda at: len(set(piece[at : at + size].tolist())))


def _candidates(
    text: UInt[np.ndarray, "tokens"], wanted: UInt64[np.ndarray, "_"], size: int, chunk_tokens: int
) -> Iterator[tuple[Int64[np.ndarray, "_"], UInt64[np.ndarray, "_"]]]:
    """Places of the text whose hash is one of those wanted, with the hash, chunk by chunk."""
    buckets = np.zeros(1 << int(BUCKET_BITS), np.bool_)
    buckets[wanted >> (np.uint64(64) - BUCKET_BITS)] = True
    for begin in range(0, len(text) - size + 1, chunk_tokens):
        hashes = _hashes(text[begin : begin + chunk_tokens + size - 1], size)
        near = np.flatnonzero(buckets[hashes >> (np.uint64(64) - BUCKET_BITS)])
        places = near[np.isin(hashes[near], wanted)]
        yield places + begin, hashes[places]


def _hashes(tokens: UInt[np.ndarray, "tokens"], size: int) -> UInt64[np.ndarray, "grams"]:
    """A hash of each `size` tokens in a row, `size` a power of two: that of a pair of halves, from below."""
    hashes, span = (tokens.astype(np.uint64) + np.uint64(1)) * MULTIPLIER, 1
    while span < size:
        left, right = hashes[:-span], hashes[span:]
        hashes = (left ^ (left >> np.uint64(29))) * MULTIPLIER + right
        span *= 2
    return hashes


def _stands_at(
    text: UInt[np.ndarray, "tokens"], piece: UInt[np.ndarray, "_"], places: Int64[np.ndarray, "candidates"]
) -> bool:
    """Whether the piece begins at one of these places."""
    places = places[(places >= 0) & (places <= len(text) - len(piece))]
    for offset, token in enumerate(piece):
        if not len(places):
            return False
        places = places[text[places + offset] == token]
    return bool(len(places))
