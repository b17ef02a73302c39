"""Delta Attention Residuals against the formula, and against the standard residual at the start."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from attention_residuals import InputError
from attention_residuals.streams import AttnResStream, Blocks, DeltaAttnRes, Stream, Sublayers
from tests.streams.relatives import assert_follows, block_sums, built
from tests.streams.support import draw, walk

SUBLAYERS = 7
CASES = [DeltaAttnRes(), DeltaAttnRes(null_source=False), DeltaAttnRes(Sublayers(3)), DeltaAttnRes(Blocks(2))]


def formula(residual: DeltaAttnRes, stream: Stream) -> Callable[[Sequence[Tensor], int], Tensor]:
    """h = x + sum of a_i v_i, exp(<w, g v_i / rms>) each, over their sum and that of the null source, exp(0)."""
    parameters = dict(stream.named_parameters())

    def read(v: Sequence[Tensor], i: int) -> Tensor:
        x = torch.stack(list(v)).sum(0)
        if i in (0, stream.shape.sublayers):
            return x
        query, norm = parameters[f"queries.{i}"], parameters[f"key_norms.{i}"]
        sources = torch.stack(block_sums(v, residual.block.in_sublayers(stream.shape.sublayers)))
        size = ((sources**2).mean(-1, keepdim=True) + residual.key_eps) ** 0.5
        odds = torch.exp((query * norm * sources / size).sum(-1))
        share = odds / (odds.sum(0) + (1 if residual.null_source else 0))
        return x + torch.einsum("nbt,nbtd->btd", share, sources)

    return read


@pytest.mark.parametrize("residual", CASES)
def test_outputs_and_gradients_are_those_of_the_formula(residual: DeltaAttnRes) -> None:
    stream = built(residual, SUBLAYERS)
    assert_follows(stream, formula(residual, stream))


def test_the_head_sees_the_plain_stream_and_has_no_query() -> None:
    stream = built(DeltaAttnRes(), SUBLAYERS)
    *_, last = walk(stream, draw(2, 3, 6))
    assert torch.equal(stream.finish(last), stream.carried(last))
    assert not any("output" in name for name, _ in stream.named_parameters())


@pytest.mark.parametrize("null_source", [True, False])
def test_the_null_source_takes_a_share_of_the_weight(null_source: bool) -> None:
    stream = DeltaAttnRes(null_source=null_source).build(5, 6).double()
    assert isinstance(stream, AttnResStream)
    states = list(walk(stream, draw(2, 3, 6)))
    expected = 3 / 4 if null_source else 1.0
    assert torch.allclose(stream.weights(states[2], 2).sum(0), torch.full((2, 3), expected, dtype=torch.float64))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(InputError, match="block is 4, a number without a unit"):
        DeltaAttnRes(4)  # pyright: ignore[reportArgumentType]
    with pytest.raises(InputError, match="key_eps is -1"):
        DeltaAttnRes(key_eps=-1)
