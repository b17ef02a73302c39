"""Validation text in the training text is found wherever it stands."""

import random

import pytest

from attention_residuals.experiments import leakage
from attention_residuals.experiments.leakage import PIECE_TOKENS, seen_share
from attention_residuals.train import TokenData


def noise(size: int, seed: int) -> bytes:
    return bytes(random.Random(seed).choices(range(97, 123), k=size))


@pytest.mark.parametrize("chunk", [1 << 22, 100])
def test_the_share_that_was_copied_is_found(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leakage, "CHUNK_TOKENS", chunk)
    validation = noise(10 * PIECE_TOKENS - 1, 0)  # and the separator
    copied = validation[: 4 * PIECE_TOKENS]
    training = noise(333, 1) + copied + noise(500, 2)
    assert seen_share(TokenData.from_bytes(training, validation, 16)) == pytest.approx(0.4)


def test_other_text_is_not_found() -> None:
    assert seen_share(TokenData.from_bytes(noise(5000, 1), noise(2000, 2), 16)) == 0


def test_text_shorter_than_a_piece_says_nothing() -> None:
    assert seen_share(TokenData.from_bytes(b"short text, twice" * 2, b"a little text to hold out", 16)) == 0
