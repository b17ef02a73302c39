"""The choice of the next token."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attention_residuals.errors import InputError, is_count


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn.

    Args:
        temperature: logits are divided by it; 0 takes the likeliest token.
        top_k: only so many of the likeliest tokens are drawn from; None: all.
        top_p: only the fewest likeliest tokens whose probabilities reach this sum, after `top_k`; 1: all.
        seed: of the draws. Each prompt of a batch has draws of its own, from `seed` and its row.

    Raises:
        InputError: a value out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"temperature is {self.temperature}; it must be a number of at least 0, 0 being greedy")
        if self.top_k is not None and not is_count(self.top_k):
            raise InputError(f"top_k is {self.top_k}; it must be a whole number of at least 1, or none")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p is {self.top_p}; it must be above 0 and at most 1")

    def generators(self, rows: int) -> list[torch.Generator]:
        """The source of draws of each row."""
        return [torch.Generator().manual_seed(self.seed + row) for row in range(rows)]


GREEDY = Sampling(temperature=0.0)


def draw(
    logits: Float[Tensor, "batch vocab"], sampling: Sampling, generators: Sequence[torch.Generator]
) -> Int[Tensor, "batch"]:
    """The next token of each row, on the CPU; a tie of greedy rows goes to the lowest token."""
    if sampling.temperature == 0:
        return logits.argmax(-1).cpu()
    probabilities = kept_probabilities(logits.float().cpu(), sampling)
    drawn = [
        torch.multinomial(row, 1, generator=generator) for row, generator in zip(probabilities, generators, strict=True)
    ]
    return torch.cat(drawn)


def kept_probabilities(logits: Float[Tensor, "batch vocab"], sampling: Sampling) -> Float[Tensor, "batch vocab"]:
    """Probabilities to draw with, zero for tokens that `top_k` or `top_p` leaves out; they need not sum to 1."""
    probabilities = (logits / sampling.temperature).softmax(-1)
    if sampling.top_k is None and sampling.top_p == 1:
        return probabilities
    ordered, tokens = probabilities.sort(stable=True, dim=-1, descending=True)
    if sampling.top_k is not None:
        ordered[:, sampling.top_k :] = 0
    before = ordered.cumsum(-1) - ordered
    ordered[before >= sampling.top_p * ordered.sum(-1, keepdim=True)] = 0
    return torch.zeros_like(probabilities).scatter(-1, tokens, ordered)
