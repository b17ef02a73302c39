"""The variants and relatives of Attention Residuals, and what their oracles share."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest
import torch
from torch import Tensor

from attention_residuals.streams import (
    AttnRes,
    DeltaAttnRes,
    LowRankAttnRes,
    Query,
    ReadScale,
    Residual,
    RmsBlockAttnRes,
    Stream,
    Sublayers,
    Weighting,
)

from .support import assert_equal_to_rounding, draw, run, toy_sublayer

Gradients: TypeAlias = list[Tensor]

RELATIVES: dict[str, Residual] = {
    "sigmoid": AttnRes(weighting=Weighting.SIGMOID),
    "keys not normed": AttnRes(Sublayers(3), key_norm=False),
    "dynamic": AttnRes(Sublayers(4), query=Query.PROJECTED, scale=ReadScale.SUM),
    "static": AttnRes(query=Query.NONE),
    "window": AttnRes(window_sublayers=3),
    "heads": AttnRes(Sublayers(2), heads=2),
    "rms-block": RmsBlockAttnRes(Sublayers(3)),
    "delta": DeltaAttnRes(),
    "low rank": LowRankAttnRes(Sublayers(2), key_features=3),
}

each_relative = pytest.mark.parametrize("residual", RELATIVES.values(), ids=RELATIVES.keys())


def randomise(module: torch.nn.Module, seed: int = 1) -> None:
    """Values that are not those of a fresh stream: norms around 1, everything else of size 1/2."""
    with torch.no_grad():
        for n, (name, parameter) in enumerate(module.named_parameters()):
            noise = draw(*parameter.shape, seed=1000 * seed + n)
            parameter.copy_(1 + 0.3 * noise if "norms." in name else 0.5 * noise)


def built(residual: Residual, sublayers: int, width: int = 6) -> Stream:
    """A stream in float64 with parameters of its own."""
    stream = residual.build(sublayers, width).double()
    randomise(stream)
    return stream


def pre_normed(stream: Stream, i: int, mixture: Tensor) -> Tensor:
    """RMSNorm as a formula, with the weight of sublayer `i`."""
    size = (mixture.square().mean(-1, keepdim=True) + stream.shape.norm_eps).sqrt()
    return stream.pre_norms[str(i)] * mixture / size


def outputs_by(stream: Stream, mixture: Callable[[Sequence[Tensor], int], Tensor], embedding: Tensor) -> list[Tensor]:
    """v_0, v_1, ... of the toy network when `mixture(v, i)` says what sublayer `i` reads of them."""
    v = [embedding]
    for i in range(stream.shape.sublayers):
        v.append(toy_sublayer(i, pre_normed(stream, i, mixture(v, i))))
    return v


def assert_follows(stream: Stream, mixture: Callable[[Sequence[Tensor], int], Tensor]) -> None:
    """The stream's output, and its gradients in the embedding and every parameter, are those of the formula.

    `mixture(v, i)` is the formula for what sublayer `i` reads of v_0 .. v_i; `i = sublayers` asks for the head.
    """
    embedding = draw(2, 3, stream.shape.width).requires_grad_()
    inputs = [embedding, *stream.parameters()]
    expected = mixture(outputs_by(stream, mixture, embedding), stream.shape.sublayers)
    actual = run(stream, embedding)
    assert_equal_to_rounding(actual.detach(), expected.detach())
    upstream = draw(*expected.shape, seed=9)
    ours, theirs = (torch.autograd.grad(result, inputs, upstream) for result in (actual, expected))
    largest = max(grad.abs().max() for grad in theirs)
    for name, our, their in zip(["embedding", *dict(stream.named_parameters())], ours, theirs, strict=True):
        assert their.abs().max() > 0, f"{name} has no part in the result"
        assert (our - their).abs().max() <= 1e-11 * largest, name


def block_sums(v: Sequence[Tensor], block: int) -> list[Tensor]:
    """The embedding, and the outputs so far in sums of `block`, the last one as far as it has come."""
    sums = [sum(v[first + 1 : first + block], start=v[first]) for first in range(1, len(v), block)]
    return [v[0], *sums]
