"""A forward pass of which everything along the depth is kept: states, mixtures, outputs."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.models import Decoder
from attention_residuals.streams import State

CHUNK_TOKENS = 1024
"""Tokens walked at once, so that memory does not grow with how many are asked for."""


@dataclass(frozen=True, eq=False)
class Walk:
    """One forward pass through L sublayers.

    Args:
        outputs: v_0, the embedding, and v_1 .. v_L, what each sublayer wrote, `[B, T, D]`.
        states: before reads 0 .. L, the last being that of the head.
        mixtures: what each of these reads sees before any norm, `[B, T, D]`.
    """

    outputs: list[Tensor]
    states: list[State]
    mixtures: list[Tensor]


@torch.no_grad()
def walk(model: Decoder, tokens: Int[Tensor, "batch time"]) -> Walk:
    """The model's own loop over depth."""
    stream, embedding = model.stream, model.embedding(tokens)
    state = stream.start(embedding)
    outputs, states, mixtures = [embedding], [], []
    for i in range(model.config.sublayers):
        states.append(state)
        mixtures.append(stream.mixture(state, i))
        outputs.append(model.compute(i, stream.read(state, i)))
        state = stream.write(state, i, outputs[-1])
    return Walk(outputs, [*states, state], [*mixtures, stream.finish(state)])


@torch.no_grad()
def resume_walk(model: Decoder, state: State, read: int, mixture: Float[Tensor, "batch time width"]) -> Tensor:
    """Logits `[B, T, vocab]` when read `read` sees `mixture` instead of its own; `state` is that before the read."""
    stream, last = model.stream, model.config.sublayers
    if read == last:
        return model.logits(mixture)
    state = stream.write(state, read, model.compute(read, stream.normed(mixture, read)))
    for i in range(read + 1, last):
        state = model.step(state, i)
    return model.logits(stream.finish(state))


def window_losses(
    logits: Float[Tensor, "windows time vocab"], targets: Int[Tensor, "windows time"]
) -> Float[Tensor, "windows"]:
    """Mean loss of each window in nats a token, in float64."""
    losses = F.cross_entropy(logits.flatten(0, 1).double(), targets.flatten(), reduction="none")
    return losses.view(targets.shape).mean(-1)


def chunks(model: Decoder, windows: Int[Tensor, "windows time"]) -> Iterator[Int[Tensor, "batch time"]]:
    """Windows some at a time, on the device of the model."""
    at_once = max(1, CHUNK_TOKENS // (windows.shape[1] - 1))
    for part in windows.split(at_once):
        yield part.to(model.embedding.weight.device)
