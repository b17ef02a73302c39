"""How long Kimi Delta Attention takes: a forward by its length, and one token by the number of tokens before it."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attention_residuals.bench.progress import Work
from attention_residuals.bench.timing import Budget, Task, time_in_turns
from attention_residuals.inference import GrowingCache
from attention_residuals.nn import Context, KimiDeltaAttention, rotation


@dataclass(frozen=True)
class Sizes:
    """Of the sublayer and of the batch."""

    width: int = 256
    heads: int = 4
    head_dim: int = 64
    batch: int = 1


def forward_seconds(
    lengths: Sequence[int], budget: Budget, work: Work, sizes: Sizes = Sizes(), backward: bool = False
) -> dict[int, float]:
    """Median seconds of a forward over so many tokens, in float32; with the gradients of everything if asked for."""
    layer = _layer(sizes).requires_grad_(backward)

    def task(tokens: int) -> Task:
        x = _draw(sizes, tokens).requires_grad_(backward)
        return (lambda: layer(x).sum().backward()) if backward else (lambda: layer(x))

    return _medians({tokens: task(tokens) for tokens in lengths}, budget, work)


@torch.no_grad()
def decode_seconds(contexts: Sequence[int], budget: Budget, work: Work, sizes: Sizes = Sizes()) -> dict[int, float]:
    """Median seconds of one more token after so many."""
    layer, one = _layer(sizes), _draw(sizes, 1)

    def task(tokens: int) -> Task:
        context = Context(rotation(torch.arange(1), 2, 1.0, torch.float32), cache=GrowingCache())
        layer(_draw(sizes, tokens), context)
        return lambda: layer(one, context)

    return _medians({tokens: task(tokens) for tokens in contexts}, budget, work)


def _medians(tasks: dict[int, Task], budget: Budget, work: Work) -> dict[int, float]:
    return {tokens: statistics.median(seconds) for tokens, seconds in time_in_turns(tasks, budget, work).items()}


def _layer(sizes: Sizes) -> KimiDeltaAttention:
    torch.manual_seed(0)
    return KimiDeltaAttention(sizes.width, sizes.heads, sizes.head_dim)


def _draw(sizes: Sizes, tokens: int) -> Tensor:
    return torch.randn(sizes.batch, tokens, sizes.width)
