"""Batches: a function of seed and step, next tokens in place, validation windows that do not overlap."""

import math

import pytest
import torch

from attention_residuals import InputError
from attention_residuals.train import TokenData, bits
from attention_residuals.train.text.encode import entropy

TEXT = bytes(range(1, 251)) * 4


def data(sequence_tokens: int = 10) -> TokenData:
    return TokenData.from_bytes(TEXT[:-1], TEXT[:204], sequence_tokens)


def test_a_batch_is_a_function_of_seed_and_step_alone() -> None:
    first = data().batch(0, 5, 4)
    torch.manual_seed(123)
    data().batch(0, 4, 4)
    assert torch.equal(data().batch(0, 5, 4), first)
    assert not torch.equal(data().batch(0, 6, 4), first)
    assert not torch.equal(data().batch(1, 5, 4), first)


def test_batches_stay_what_they_were() -> None:
    assert data().batch(7, 3, 4)[:, 0].tolist() == [202, 118, 143, 70]


def test_windows_are_running_text() -> None:
    batch = TokenData.from_bytes(TEXT, TEXT, 10).batch(0, 0, 64)
    assert batch.shape == (64, 11) and batch.dtype == torch.int64
    steps = (batch[:, 1:] - batch[:, :-1]) % 250
    assert (steps[batch[:, 1:] != 0] == 1).all()


def test_every_place_of_the_text_can_be_drawn() -> None:
    short = TokenData.from_bytes(TEXT[:11], TEXT[:11], 10)
    firsts = {int(row[0]) for step in range(20) for row in short.batch(0, step, 4)}
    assert firsts == {1, 2}


@pytest.mark.parametrize("most", [10, 55, 10_000])
def test_validation_windows_do_not_overlap(most: int) -> None:
    windows = data().validation_windows(most)
    starts = windows[:, 0] - 1
    assert (starts.diff() >= 10).all()
    assert len(windows) == min(20, most // 10)


def test_a_text_too_short_for_one_sequence_is_refused() -> None:
    with pytest.raises(InputError, match="validation text has 205 tokens, too short for one sequence of 205"):
        data(205)
    assert len(data(204).validation_windows(1)) == 1


def test_the_prompt_is_how_validation_begins() -> None:
    assert data().prompt(3).tolist() == [1, 2, 3]


def test_entropy_in_nats_and_bits() -> None:
    assert entropy(torch.tensor([0, 2, 2])) == pytest.approx(math.log(2))
    assert bits(math.log(2)) == pytest.approx(1)
    assert TokenData.from_bytes(b"abab", b"abab", 2).bytes_per_token == 1
