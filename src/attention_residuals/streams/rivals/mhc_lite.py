"""mHC-lite: hyper-connections mixed by a convex combination of all permutations of the streams.

    mix = sum_p w_p P_p        w = softmax(a_mix P_mix h + b_mix)        p runs over the n! permutations

From Yang and Gao, arXiv 2601.05732. Everything else is as in mHC; by the theorem of Birkhoff and von Neumann these are
all doubly stochastic matrices, and rows and columns sum to one without an iteration. The start is that of the authors'
published code: b_mix is 0 for the identity and -8 for every other permutation, so that the mixing starts within 0.01
of the identity.

Neither the first nor the last sublayer mixes: rows that sum to one leave the equal streams of the first as they are,
and columns that sum to one leave the sum that the head sees, so those parameters would never have a gradient.

The number of permutations bounds n: 24 rows of P_mix for 4 streams, 720 for 6, which is the most allowed.
"""

import itertools
from dataclasses import dataclass
from math import factorial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.errors import InputError
from attention_residuals.streams.base import StreamShape
from attention_residuals.streams.rivals.mhc import ConstrainedStream
from attention_residuals.streams.rivals.multistream import MultiStreamResidual, one_of

MOST_STREAMS = 6


@final
@dataclass(frozen=True)
class MHCLite(MultiStreamResidual):
    """Convex combinations of permutations; formula and choices at the head of this file.

    Args:
        streams: n.

    Raises:
        InputError: streams below 1 or above 6.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.streams > MOST_STREAMS:
            raise InputError(
                f"streams is {self.streams}, which has {factorial(self.streams)} permutations; "
                f"mHC-lite takes at most {MOST_STREAMS} streams, and MHC any number"
            )

    def _build(self, shape: StreamShape) -> "MHCLiteStream":
        return MHCLiteStream(self.streams, shape)


@final
class MHCLiteStream(ConstrainedStream):
    """State as in `MultiStream`. `static_mix` has an entry for each permutation."""

    def __init__(self, streams: int, shape: StreamShape):
        super().__init__(streams, shape, mixing_rows=factorial(streams))
        self.permutations = permutation_matrices(streams)  # no buffer: a model built on the meta device would lose it

    def mixes(self, i: int) -> bool:
        return super().mixes(i) and i + 1 < self.shape.sublayers

    def start_mix(self) -> Tensor:
        return one_of(factorial(self.streams), 0, chosen=0.0, others=-8.0)

    def constrained(self, logits: Float[Tensor, "*tokens rows"], static: Tensor) -> Float[Tensor, "*tokens n n"]:
        weights = (logits + static).softmax(-1)
        return (weights @ self.permutations.to(weights)).unflatten(-1, (self.streams, self.streams))

    def describe(self) -> str:
        return f"mHC-lite, {self.streams} streams over {self.shape.sublayers} sublayers"


def permutation_matrices(n: int) -> Float[Tensor, "permutations entries"]:
    """All permutation matrices, each as a row of n * n entries, the identity first, on the CPU."""
    orders = torch.tensor(list(itertools.permutations(range(n))), device="cpu")
    return torch.nn.functional.one_hot(orders, n).flatten(1).float()
