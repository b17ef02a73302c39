"""Hyper-connections (HC): n streams whose connections are learned, in part from the streams themselves.

    into_j = A_j + s_a tanh(w_a . h_j)       out_j = B_j + s_b tanh(w_b . h_j)
    mix_kj = R_jk + s_a tanh(W_k . h_j)      h_j = RMSNorm(H_j)

From Zhu et al., arXiv 2409.19606, section 2: the dynamic form (Eq. 10-13), in which each stream decides on its own
connections, and its initialisation (Eq. 14): projections zero, scales 0.01, B one, R the identity, A one for stream
i modulo n and zero for the others. Every stream then is the standard residual, and so is the network. Connections are
per sublayer, as there; the head sees the sum of the streams.

Choices: RMSNorm without a weight of its own, which would only repeat that of the projections. The authors' scaling of
output matrices by the root of n is left out, so that all schemes start from equal weights. Projections are not
decayed; the authors decay them.
"""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

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
class HyperConnections(MultiStreamResidual):
    """Dynamic hyper-connections; formula and choices at the head of this file. Arguments as in the base."""

    def _build(self, shape: StreamShape) -> "HyperConnectionsStream":
        return HyperConnectionsStream(self.streams, shape)


@final
class HyperConnectionsStream(MultiStream):
    """State as in `MultiStream`. Rows of a projection: w_a, w_b, then W; scales: s_a, s_b."""

    def __init__(self, streams: int, shape: StreamShape):
        super().__init__(streams, shape, features=shape.width)

    def dynamic_parts(self, i: int) -> tuple[int, int]:
        return self.streams + 2, 2

    def start_into(self, i: int) -> Float[Tensor, " n"]:
        return one_of(self.streams, i, chosen=1.0, others=0.0)

    def start_out(self, i: int) -> Float[Tensor, " n"]:
        return torch.ones(self.streams)

    def start_mix(self) -> Tensor:
        return torch.eye(self.streams)

    def connections(self, h: Float[Tensor, "*tokens n width"], i: int) -> Connections:
        key = str(i)
        dynamic = ((h @ self.projections[key].t()) * inverse_rms(h, self.shape.norm_eps)).tanh()
        into, out, mix = dynamic.split([1, 1, self.streams], -1)  # of each stream, from the stream itself
        s_a, s_b = self.scales[key].unbind()
        return Connections(
            torch.addcmul(self.static_into[key], into.squeeze(-1), s_a),
            torch.addcmul(self.static_out[key], out.squeeze(-1), s_b),
            torch.addcmul(self.static_mix[key], mix, s_a).transpose(-1, -2),
        )

    def describe(self) -> str:
        return f"hyper-connections, {self.streams} streams over {self.shape.sublayers} sublayers"
