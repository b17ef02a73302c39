"""Names of models on the command line."""

import pytest

from attention_residuals import Additive, AttnRes, InputError, ReadScale, Sublayers
from attention_residuals.experiments.arms import residual_of


def test_names_stand_for_streams() -> None:
    assert residual_of("standard") == Additive()
    assert residual_of("full") == AttnRes(Sublayers(1))
    assert residual_of("block") == AttnRes(Sublayers(4))
    assert residual_of("block6+sum") == AttnRes(Sublayers(6), scale=ReadScale.SUM)


@pytest.mark.parametrize("name", ["", "Standard", "full4", "block:4", "block+mean", "standard+sum", "block-1"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=f"'{name.replace('+', '.')}' is no model; choose full, block"):
        residual_of(name)


def test_a_block_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="count=0"):
        residual_of("block0")
