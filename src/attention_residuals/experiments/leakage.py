"""How much of the validation text stands word for word in the training text."""

import numpy as np
from jaxtyping import UInt64

from attention_residuals.train import TokenData

PIECE_TOKENS = 64
CHUNK_TOKENS = 1 << 22
MOST_TRAINING_TOKENS = 1 << 29
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
"""Odd, so that it has an inverse modulo 2^64."""


def seen_share(data: TokenData) -> float:
    """Share of the validation text, cut into pieces of `PIECE_TOKENS` tokens, that the training text has too.

    A piece counts wherever it begins in the training text; of that at most the first `MOST_TRAINING_TOKENS` are read.
    """
    pieces = np.unique(_hashes(data.validation.tokens, PIECE_TOKENS))
    training = data.training.tokens[:MOST_TRAINING_TOKENS]
    seen = np.zeros(len(pieces), np.bool_)
    for begin in range(0, len(training), CHUNK_TOKENS):
        found = _hashes(training[begin : begin + CHUNK_TOKENS + PIECE_TOKENS - 1], 1)
        places = np.minimum(np.searchsorted(pieces, found), len(pieces) - 1)
        seen[places[pieces[places] == found]] = True
    return float(seen.mean()) if len(pieces) else 0.0


def _hashes(tokens: np.ndarray, every: int) -> UInt64[np.ndarray, "pieces"]:
    """A polynomial hash modulo 2^64 of each piece that begins at a multiple of `every`."""
    if len(tokens) < PIECE_TOKENS:
        return np.empty(0, np.uint64)
    powers = np.cumprod(np.full(len(tokens), MULTIPLIER))
    sums = np.concatenate(([np.uint64(0)], np.cumsum((tokens.astype(np.uint64) + np.uint64(1)) * powers)))
    begins = np.arange(0, len(tokens) - PIECE_TOKENS + 1, every)
    # Dividing by the power at its begin makes a piece's hash the same wherever it stands.
    inverse = np.uint64(pow(int(MULTIPLIER), -1, 1 << 64))
    shifts = np.cumprod(np.full(len(tokens), inverse))[begins]
    return (sums[begins + PIECE_TOKENS] - sums[begins]) * shifts
