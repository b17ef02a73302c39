"""Which tokens may be drawn, and how often they are."""

import pytest
import torch

from attention_residuals import InputError
from attention_residuals.inference.sampling import GREEDY, Sampling, draw, kept_probabilities

LOGITS = torch.tensor([[2.0, 0.0, 1.0, -1.0, 1.0]])


def kept(**options) -> list[int]:
    return kept_probabilities(LOGITS, Sampling(**options))[0].nonzero().flatten().tolist()


def test_greedy_takes_the_likeliest_and_the_lowest_of_a_tie() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0], [5.0, 1.0, 2.0]])
    assert draw(logits, GREEDY, []).tolist() == [1, 0]


def test_top_k_and_top_p_leave_out_the_unlikely() -> None:
    assert kept() == [0, 1, 2, 3, 4]
    assert kept(top_k=1) == [0]
    assert kept(top_k=2) == [0, 2]  # of a tie the lower token
    assert kept(top_k=9) == [0, 1, 2, 3, 4]
    probabilities = LOGITS.softmax(-1)[0]
    first, second = probabilities[0].item(), probabilities[2].item()
    assert kept(top_p=first - 1e-4) == [0]
    assert kept(top_p=first + 1e-4) == [0, 2]
    assert kept(top_p=first + second + 1e-4) == [0, 2, 4]
    # top_p is of what top_k has left
    assert kept(top_k=2, top_p=first / (first + second) - 1e-4) == [0]
    assert kept(top_k=2, top_p=first / (first + second) + 1e-4) == [0, 2]


def test_draws_have_the_probabilities_of_the_temperature() -> None:
    sampling = Sampling(temperature=0.7, top_k=3)
    expected = kept_probabilities(LOGITS, sampling)[0]
    expected = expected / expected.sum()
    generators = [torch.Generator().manual_seed(0)]
    drawn = torch.cat([draw(LOGITS, sampling, generators) for _ in range(4000)])
    found = torch.bincount(drawn, minlength=5) / len(drawn)
    assert (found - expected).abs().max() < 4 * (0.25 / len(drawn)) ** 0.5
    torch.testing.assert_close(expected[[0, 2]].log().diff(), torch.tensor([-1 / 0.7]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0}, "top_k is 0"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.1}, "top_p is 1.1"),
    ],
)
def test_values_out_of_range_are_refused(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Sampling(**options)
