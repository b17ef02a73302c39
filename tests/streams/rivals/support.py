"""Oracles: each scheme once more, for a single token, vector by vector, from the formula."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from attention_residuals.streams import Residual, Stream

from ..support import apart, assert_equal_to_rounding, draw, toy_sublayer

EPS = 1e-6
SUBLAYERS = 7
WIDTH = 6
TOKENS = 3

Parameters: TypeAlias = dict[str, Tensor]
Oracle: TypeAlias = Callable[[Parameters, Tensor, int], list[Tensor]]
"""From the parameters, the embedding `[D]` of a token and the number of sublayers: what each sublayer reads in front of
its pre-norm, and what the head sees."""


def norm(x: Tensor, weight: Tensor | float = 1.0) -> Tensor:
    return weight * x / torch.sqrt((x * x).sum() / x.numel() + EPS)


def call(p: Parameters, i: int, mixture: Tensor) -> Tensor:
    """The output of sublayer `i`, its pre-norm included where it has one."""
    weight = p.get(f"pre_norms.{i}")
    return toy_sublayer(i, mixture if weight is None else norm(mixture, weight))


def build(
    residual: Residual,
    sublayers: int = SUBLAYERS,
    *,
    trained: bool = True,
    pre_norm: bool = True,
    width: int = WIDTH,
) -> Stream:
    """A stream in float64; `trained`: every parameter away from where it starts."""
    stream = residual.build(sublayers, width, pre_norm=pre_norm, norm_eps=EPS).double()
    if trained:
        randomise(stream)
    return stream


def randomise(stream: torch.nn.Module) -> None:
    with torch.no_grad():
        for n, parameter in enumerate(stream.parameters()):
            parameter.add_(0.5 * draw(*parameter.shape, seed=100 + n))


def reads(stream: Stream, embedding: Tensor) -> Tensor:
    """What every sublayer reads in front of its pre-norm, and what the head sees: `[reads, tokens, D]`."""
    state, found = stream.start(embedding), []
    for i in range(stream.shape.sublayers):
        found.append(stream.mixture(state, i))
        state = stream.write(state, i, toy_sublayer(i, stream.read(state, i)))
    return torch.stack([*found, stream.finish(state)])


def assert_follows(residual: Residual, oracle: Oracle, sublayers: int = SUBLAYERS, pre_norm: bool = True) -> None:
    """All reads, and the gradients of the embedding and of every parameter, are those of the oracle."""
    stream = build(residual, sublayers, pre_norm=pre_norm)
    embedding = draw(TOKENS, WIDTH).requires_grad_()
    p = {name: value.detach().clone().requires_grad_() for name, value in stream.named_parameters()}
    x = embedding.detach().clone().requires_grad_()
    actual = reads(stream, embedding)
    expected = torch.stack([torch.stack(oracle(p, token, sublayers)) for token in x], dim=1)
    assert_equal_to_rounding(actual, expected)
    direction = draw(*expected.shape, seed=9)
    (actual * direction).sum().backward()
    (expected * direction).sum().backward()
    assert embedding.grad is not None and x.grad is not None
    assert_equal_to_rounding(embedding.grad, x.grad)
    for name, parameter in stream.named_parameters():
        ours, theirs = parameter.grad, p[name].grad
        assert ours is not None and theirs is not None, f"{name} has no gradient"
        assert theirs.abs().max() > 0, f"{name} plays no part"
        assert apart(ours, theirs) < 1e5, name


def differs(one: Tensor, other: Tensor) -> bool:
    """By far more than rounding."""
    return apart(one, other) > 1e9
