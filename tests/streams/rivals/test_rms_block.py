"""RMS-Block Attention Residuals against the formula: which blocks are closed, and what they hold then."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from attention_residuals import InputError, ReadScale, Sublayers
from attention_residuals.streams import RmsBlockAttnRes, Stream
from tests.streams.relatives import assert_follows, built
from tests.streams.support import assert_equal_to_rounding, draw, walk

SUBLAYERS = 7
CASES = [
    RmsBlockAttnRes(Sublayers(3)),
    RmsBlockAttnRes(Sublayers(3), scale=ReadScale.SUM, output_read=False),
    RmsBlockAttnRes(Sublayers(1)),
    RmsBlockAttnRes(Sublayers(7), sum_eps=0.3),
]


def formula(residual: RmsBlockAttnRes, stream: Stream) -> Callable[[Sequence[Tensor], int], Tensor]:
    parameters = dict(stream.named_parameters())
    block = residual.block.in_sublayers(stream.shape.sublayers)

    def read(v: Sequence[Tensor], i: int) -> Tensor:
        if i == 0:
            return v[0]
        sources = [v[0]]
        for first in range(1, len(v), block):
            inside = torch.stack(list(v[first : first + block]))
            if len(inside) == block:
                inside = inside / ((inside**2).mean(-1, keepdim=True) + residual.sum_eps) ** 0.5
            sources.append(inside.sum(0))
        stacked = torch.stack(sources)
        if i == stream.shape.sublayers and not residual.output_read:
            return stacked.sum(0)
        key = "output" if i == stream.shape.sublayers else str(i)
        size = ((stacked**2).mean(-1, keepdim=True) + residual.key_eps) ** 0.5
        odds = torch.exp((parameters[f"queries.{key}"] * parameters[f"key_norms.{key}"] * stacked / size).sum(-1))
        mixed = torch.einsum("nbt,nbtd->btd", odds / odds.sum(0), stacked)
        return mixed * len(sources) if residual.scale is ReadScale.SUM else mixed

    return read


@pytest.mark.parametrize("residual", CASES)
def test_outputs_and_gradients_are_those_of_the_formula(residual: RmsBlockAttnRes) -> None:
    stream = built(residual, SUBLAYERS)
    assert_follows(stream, formula(residual, stream))


def test_the_size_of_an_output_does_not_count_in_a_closed_block() -> None:
    stream = RmsBlockAttnRes(Sublayers(2), sum_eps=0.0).build(4, 6).double()
    state, one, other = stream.start(draw(2, 3, 6)), draw(2, 3, 6, seed=1), draw(2, 3, 6, seed=2)
    closed = [stream.write(stream.write(state, 0, size * one), 1, other) for size in (1, 100)]
    assert_equal_to_rounding(stream.mixture(closed[1], 2), stream.mixture(closed[0], 2))
    *_, last = walk(stream, draw(2, 3, 6))
    assert len(last[0]) == 3 and last[1] == ()


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="block is 4, a number without a unit"):
        RmsBlockAttnRes(4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="sum_eps is nan"):
        RmsBlockAttnRes(sum_eps=float("nan"))
