"""Low-rank Attention Residuals against the formula, and against the whole key at full rank."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from attention_residuals import AttnRes, InputError, ReadScale, Sublayers
from attention_residuals.streams import LowRankAttnRes, Stream
from tests.streams.relatives import assert_follows, block_sums, built
from tests.streams.support import assert_equal_to_rounding, draw, run

SUBLAYERS = 7
CASES = [
    LowRankAttnRes(key_features=2),
    LowRankAttnRes(Sublayers(3), key_features=3, scale=ReadScale.SUM),
    LowRankAttnRes(Sublayers(2), key_features=1),
]


def formula(residual: LowRankAttnRes, stream: Stream) -> Callable[[Sequence[Tensor], int], Tensor]:
    parameters = dict(stream.named_parameters())
    rank = residual.key_features

    def read(v: Sequence[Tensor], i: int) -> Tensor:
        if i == 0:
            return v[0]
        key = "output" if i == stream.shape.sublayers else str(i)
        sources = torch.stack(block_sums(v, residual.block.in_sublayers(stream.shape.sublayers)))
        tail = sources[..., sources.shape[-1] - rank :]
        size = ((tail**2).mean(-1, keepdim=True) + residual.key_eps) ** 0.5
        odds = torch.exp((parameters[f"queries.{key}"] * parameters[f"key_norms.{key}"] * tail / size).sum(-1))
        mixed = torch.einsum("nbt,nbtd->btd", odds / odds.sum(0), sources)
        return mixed * len(sources) if residual.scale is ReadScale.SUM else mixed

    return read


@pytest.mark.parametrize("residual", CASES)
def test_outputs_and_gradients_are_those_of_the_formula(residual: LowRankAttnRes) -> None:
    stream = built(residual, SUBLAYERS)
    assert_follows(stream, formula(residual, stream))
    assert {tuple(query.shape) for query in stream.get_submodule("queries").parameters()} == {(residual.key_features,)}


def test_at_full_rank_it_is_attention_residuals() -> None:
    low = built(LowRankAttnRes(Sublayers(3), key_features=6), SUBLAYERS)
    whole = AttnRes(Sublayers(3)).build(SUBLAYERS, 6).double()
    whole.load_state_dict(low.state_dict())
    embedding = draw(2, 3, 6)
    assert_equal_to_rounding(run(low, embedding), run(whole, embedding))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="key_features is 0"):
        LowRankAttnRes(key_features=0)
    with pytest.raises(InputError, match=r"key_features is 8 and the width 6; .* choose at most 6"):
        LowRankAttnRes().build(4, 6)
