"""Pieces are found where Python finds them."""

import random

import numpy as np
import pytest

from attention_residuals.experiments.evaluation.occurrence import occur


def tokens(text: bytes, dtype: type = np.uint8) -> np.ndarray:
    return np.frombuffer(text, np.uint8).astype(dtype)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("chunk_tokens", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("letters", ["ab", "abcdefgh"])
def test_as_python_finds_them(letters: str, chunk_tokens: int, dtype: type) -> None:
    rng = random.Random(0)
    text = "".join(rng.choices(letters, k=300))
    taken = [text[at : at + length] for at, length in ((0, 20), (280, 20), (100, 1), (37, 33), (63, 16), (298, 2))]
    drawn = ["".join(rng.choices(letters, k=length)) for length in (1, 2, 3, 5, 8, 9, 17, 40) for _ in range(4)]
    changed = [taken[0][:-1] + "z", "z" + taken[1][1:], taken[3] + "z"]
    pieces = [piece.encode() for piece in (*taken, *drawn, *changed)]
    found = occur(tokens(text.encode(), dtype), [tokens(piece, dtype) for piece in pieces], chunk_tokens=chunk_tokens)
    assert found == [piece in text.encode() for piece in pieces]
    assert all(found[: len(taken)]) and not any(found[-len(changed) :])


def test_a_monotonous_piece() -> None:
    text = b" " * 400 + b"x" + b" " * 400
    found = occur(tokens(text), [tokens(b" " * 401), tokens(b" " * 200), tokens(b" " * 30 + b"x" + b" " * 30)])
    assert found == [False, True, True]


def test_longer_than_the_text() -> None:
    assert occur(tokens(b"short"), [tokens(b"shorter than this")]) == [False]
