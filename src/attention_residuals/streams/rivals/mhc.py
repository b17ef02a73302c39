"""Manifold-constrained hyper-connections (mHC): the mixing of the streams is doubly stochastic.

    into = sigmoid(a_in P_in h + b_in)      out = 2 sigmoid(a_out P_out h + b_out)
    mix = Sinkhorn(a_mix P_mix h + b_mix)   h = RMSNorm of all n streams as one vector of n D

From Xie et al., arXiv 2512.24880, section 4.2 (Eq. 7-9): Sinkhorn takes the exponential and then lets columns and rows
sum to one in turn, rows last, 20 times. Rows of the result sum to one exactly, columns as nearly as the iteration has
converged. Per sublayer, with 4 streams and scales a of 0.01 at the start (Table 5).

The paper does not say what P and b start from, nor what the head sees. Here as in the published code of mHC-lite
(arXiv 2601.05732): P zero; b_in and b_out are 1 for stream i modulo n and -1 for the others, which tells the streams
apart; b_mix is 0 on the diagonal and -8 elsewhere, so that the mixing starts within 0.002 of the identity; the head
sees the sum. RMSNorm has no weight of its own: the paper absorbs it in P (section 4.3.1). P is not decayed.

Sublayer 0 does not mix: all streams are the embedding there, and rows that sum to one leave equal streams as they are,
so the parameters of that mixing would never have a gradient. Neither does a single stream.

Sinkhorn is computed on logarithms, which no size of a logit can overflow.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.errors import require_positive
from attention_residuals.streams.base import StreamShape
from attention_residuals.streams.rivals.multistream import (
    Connections,
    MultiStream,
    MultiStreamResidual,
    inverse_rms,
    one_of,
)


@final
@dataclass(frozen=True)
class MHC(MultiStreamResidual):
    """Manifold-constrained hyper-connections; formula and choices at the head of this file.

    Args:
        streams: n.
        iterations: normalisations of columns and rows, in pairs.

    Raises:
        InputError: one of them is below 1.
    """

    iterations: int = 20

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(self, "iterations")

    def _build(self, shape: StreamShape) -> "MHCStream":
        return MHCStream(self, shape)


class ConstrainedStream(MultiStream):
    """What mHC and mHC-lite share: the weights of reads and writes, and where they start.

    State as in `MultiStream`. Rows of a projection: P_in, P_out, then those of the mixing; scales: a_in, a_out,
    a_mix; those of the mixing where there is one.
    """

    def __init__(self, streams: int, shape: StreamShape, mixing_rows: int):
        self.mixing_rows = mixing_rows
        super().__init__(streams, shape, features=streams * shape.width)

    def mixes(self, i: int) -> bool:
        return self.streams > 1 and i > 0

    def dynamic_parts(self, i: int) -> tuple[int, int]:
        return (2 * self.streams + self.mixing_rows, 3) if self.mixes(i) else (2 * self.streams, 2)

    def start_into(self, i: int) -> Float[Tensor, " n"]:
        return one_of(self.streams, i, chosen=1.0, others=-1.0)

    def start_out(self, i: int) -> Float[Tensor, " n"]:
        return one_of(self.streams, i, chosen=1.0, others=-1.0)

    def connections(self, h: Float[Tensor, "*tokens n width"], i: int) -> Connections:
        key, x = str(i), h.flatten(-2)
        logits = (x @ self.projections[key].t()) * inverse_rms(x, self.shape.norm_eps)
        into, out, mix = logits.split([self.streams, self.streams, logits.shape[-1] - 2 * self.streams], -1)
        a_in, a_out, *a_mix = self.scales[key].unbind()
        return Connections(
            torch.addcmul(self.static_into[key], into, a_in).sigmoid(),
            2 * torch.addcmul(self.static_out[key], out, a_out).sigmoid(),
            self.constrained(mix * a_mix[0], self.static_mix[key]) if a_mix else None,
        )

    @abstractmethod
    def constrained(self, logits: Float[Tensor, "*tokens rows"], static: Tensor) -> Float[Tensor, "*tokens n n"]:
        """A doubly stochastic matrix from its dynamic and its static part."""


@final
class MHCStream(ConstrainedStream):
    """State as in `MultiStream`."""

    def __init__(self, config: MHC, shape: StreamShape):
        super().__init__(config.streams, shape, mixing_rows=config.streams**2)
        self.config = config

    def start_mix(self) -> Tensor:
        return 8 * torch.eye(self.streams) - 8

    def constrained(self, logits: Float[Tensor, "*tokens rows"], static: Tensor) -> Float[Tensor, "*tokens n n"]:
        return sinkhorn(logits.unflatten(-1, static.shape) + static, self.config.iterations)

    def describe(self) -> str:
        sublayers = self.shape.sublayers
        return f"mHC, {self.streams} streams, {self.config.iterations} iterations, over {sublayers} sublayers"


def sinkhorn(logits: Float[Tensor, "*tokens n n"], iterations: int) -> Float[Tensor, "*tokens n n"]:
    """exp(logits), columns and then rows made to sum to one, `iterations` times."""
    n = logits.shape[-1]
    table = logits.reshape(-1, n, n).permute(1, 2, 0).contiguous()  # tokens last: 30 times faster on a CPU
    for _ in range(iterations):
        table = table.log_softmax(0).log_softmax(1)
    return table.exp().permute(2, 0, 1).reshape(logits.shape)
