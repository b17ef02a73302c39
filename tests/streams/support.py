"""Small networks and comparisons for the tests of the streams."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attention_residuals.models import Decoder, DecoderConfig, build_decoder
from attention_residuals.ops import Group
from attention_residuals.streams import Additive, AttnRes, Residual, State, Stream, Sublayers

Gradients: TypeAlias = dict[str, Tensor]

RESIDUALS = {
    "additive": Additive(),
    "full": AttnRes(two_phase=False),
    "block": AttnRes(Sublayers(4), two_phase=False),
    "full in two phases": AttnRes(),
    "block in two phases": AttnRes(Sublayers(4)),
}

each_residual = pytest.mark.parametrize("residual", RESIDUALS.values(), ids=RESIDUALS.keys())

VOCABULARY = 11

ROUNDINGS = 4096
"""Roundings of float64 two orders of summation may end apart after some dozens of sublayers: 9e-13 on a size of 1."""


def draw(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers in float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def apart(actual: Tensor, expected: Tensor) -> float:
    """The largest difference in float64 roundings of the largest expected entry."""
    largest = expected.abs().max().item()
    error = (actual - expected).abs().max().item()
    return error / (torch.finfo(torch.float64).eps * largest) if largest else error


def assert_equal_to_rounding(actual: Tensor, expected: Tensor) -> None:
    assert actual.dtype == expected.dtype == torch.float64
    assert actual.shape == expected.shape
    assert apart(actual, expected) <= ROUNDINGS


def toy_sublayer(i: int, x: Tensor) -> Tensor:
    """A function without weights, another one for each `i`."""
    return (1 + 0.1 * i) * torch.tanh(x.roll(1, -1) + 0.3 * x.flip(-1) * (i % 3))


def walk(stream: Stream, embedding: Tensor) -> Iterator[State]:
    """The states before sublayers 0, 1, ... and after the last."""
    state = stream.start(embedding)
    yield state
    for i in range(stream.shape.sublayers):
        state = stream.write(state, i, toy_sublayer(i, stream.read(state, i)))
        yield state


def run(stream: Stream, embedding: Tensor) -> Tensor:
    """What the head sees."""
    *_, last = walk(stream, embedding)
    return stream.finish(last)


def tensors(state: object) -> Iterator[Tensor]:
    """The tensors of a state, which is a nested tuple of tensors; a group in it is a cache without any of its own."""
    if isinstance(state, Tensor):
        yield state
        return
    if isinstance(state, Group):
        return
    assert type(state) is tuple, f"a {type(state).__name__} in a state"
    for part in state:
        yield from tensors(part)


def randomise_depth(model: torch.nn.Module, seed: int = 1) -> None:
    """Give depth queries and key norms values that are not those of a fresh model."""
    with torch.no_grad():
        for n, (name, parameter) in enumerate(model.named_parameters()):
            if "queries." in name:
                parameter.copy_(draw(*parameter.shape, seed=1000 * seed + n))
            if "key_norms." in name:
                parameter.copy_(1 + 0.3 * draw(*parameter.shape, seed=1000 * seed + n))


def small_decoder(residual: Residual, layers: int, norm_eps: float = 1e-6) -> Decoder:
    """A decoder in float64 with weights of seed 0."""
    config = DecoderConfig(
        vocab_size=VOCABULARY,
        layers=layers,
        width=8,
        heads=2,
        kv_heads=1,
        head_dim=4,
        mlp_width=12,
        residual=residual,
        norm_eps=norm_eps,
    )
    return build_decoder(config, seed=0, dtype=torch.float64)


def tokens() -> Tensor:
    """Two sequences of six tokens."""
    return torch.randint(0, VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(3))


def loss_and_gradients(
    model: Decoder, forward: Callable[[Tensor], Tensor] | None = None
) -> tuple[Tensor, Tensor, Gradients]:
    """Logits, loss and the gradient of every parameter that has one; `forward` stands in for the model's own."""
    inputs = tokens()
    logits = model(inputs) if forward is None else forward(inputs)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), inputs[:, 1:].flatten())
    model.zero_grad()
    loss.backward()
    grads = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    return logits.detach(), loss.detach(), grads


def assert_gradients_equal_to_rounding(actual: Gradients, expected: Gradients) -> None:
    """The same parameters have gradients, and the same ones, in roundings of the largest gradient of all."""
    assert actual.keys() == expected.keys()
    largest = max(grad.abs().max().item() for grad in expected.values())
    allowed = ROUNDINGS * torch.finfo(torch.float64).eps * largest
    for name, grad in expected.items():
        assert (actual[name] - grad).abs().max().item() <= allowed, name
