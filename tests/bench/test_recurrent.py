"""The times of a recurrent sublayer are there for every length."""

import pytest

from attention_residuals.bench.recurrent import Sizes, decode_seconds, forward_seconds
from attention_residuals.bench.timing import Budget

from .support import silent

SMALL = Sizes(width=8, heads=2, head_dim=4)


@pytest.mark.parametrize("backward", [False, True])
def test_forwards_are_timed_by_their_length(backward: bool) -> None:
    found = forward_seconds([4, 70], Budget(5, 1), silent(), SMALL, backward)
    assert found.keys() == {4, 70} and min(found.values()) > 0


def test_single_tokens_are_timed_by_the_tokens_before_them() -> None:
    found = decode_seconds([4, 70], Budget(5, 1), silent(), SMALL)
    assert found.keys() == {4, 70} and min(found.values()) > 0
