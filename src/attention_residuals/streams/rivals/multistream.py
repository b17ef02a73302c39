"""What hyper-connections of every kind share: n parallel streams, read, mixed and written with weights of their own.

    x = sum_j into_j H_j        H'_k = sum_j mix_kj H_j + out_k f(x)        H of shape [n, D]

Kinds differ in where the weights come from. All streams start as the embedding, and the head sees their sum.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.errors import require_positive
from attention_residuals.streams.base import Residual, State, Stream, StreamShape
from attention_residuals.streams.parameters import DepthCoefficients, DepthMatrices

START_SCALE = 0.01
"""Of the dynamic part of the weights."""


@dataclass(frozen=True)
class MultiStreamResidual(Residual):
    """A choice of hyper-connections.

    Args:
        streams: n.

    Raises:
        InputError: streams below 1.
    """

    streams: int = 4

    def __post_init__(self) -> None:
        require_positive(self, "streams")


class Connections(NamedTuple):
    """Weights of one sublayer: of the streams in what it reads, of its output in the streams, and of the old streams
    (last dimension) in each new one, None where every stream stays as it is.
    """

    into: Float[Tensor, "*tokens n"]
    out: Float[Tensor, "*tokens n"]
    mix: Float[Tensor, "*tokens n n"] | None


class MultiStream(Stream):
    """State: `(H, x, mixed, out)`: the streams `[..., n, D]`, and for the next sublayer what it reads, the streams as
    it mixes them and the weights of its output, all made as soon as H is; `(H,)` after the last sublayer.

    Parameters of sublayer i: `projections` `[rows, features]`, from the streams to the dynamic part of all weights,
    zero at the start; `scales`, small factors on it; and the static parts `static_into` `[n]`, `static_out` `[n]` and,
    where the sublayer mixes, `static_mix`. Weights are computed outside autocast, in the type of the streams.
    """

    def __init__(self, streams: int, shape: StreamShape, features: int):
        super().__init__(shape)
        self.streams = streams
        sublayers = range(shape.sublayers)
        counts = {i: self.dynamic_parts(i) for i in sublayers}
        self.projections = DepthMatrices({i: partial(torch.zeros, rows, features) for i, (rows, _) in counts.items()})
        self.scales = DepthCoefficients({i: partial(torch.full, (n,), START_SCALE) for i, (_, n) in counts.items()})
        self.static_into = DepthCoefficients({i: partial(self.start_into, i) for i in sublayers})
        self.static_out = DepthCoefficients({i: partial(self.start_out, i) for i in sublayers})
        self.static_mix = DepthCoefficients({i: self.start_mix for i in sublayers if self.mixes(i)})

    def mixes(self, i: int) -> bool:
        """Whether the streams are mixed at sublayer `i`; if not, each stays as it is."""
        return True

    @abstractmethod
    def dynamic_parts(self, i: int) -> tuple[int, int]:
        """How many rows the projection of sublayer `i` has, and how many scales there are."""

    @abstractmethod
    def start_into(self, i: int) -> Float[Tensor, " n"]:
        """What the static part of `into` of sublayer `i` starts from."""

    @abstractmethod
    def start_out(self, i: int) -> Float[Tensor, " n"]:
        """What the static part of `out` starts from."""

    @abstractmethod
    def start_mix(self) -> Tensor:
        """What the static part of `mix` starts from."""

    @abstractmethod
    def connections(self, h: Float[Tensor, "*tokens n width"], i: int) -> Connections:
        """The weights of sublayer `i`, where the streams are `h`."""

    def start(self, embedding: Float[Tensor, "*tokens width"]) -> State:
        return self._connect(embedding.unsqueeze(-2).repeat_interleave(self.streams, -2), 0)

    def mixture(self, state: State, i: int) -> Float[Tensor, "*tokens width"]:
        return state[1]

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        _, _, mixed, out = state
        h = torch.addcmul(mixed, out.unsqueeze(-1), output.to(mixed.dtype).unsqueeze(-2))
        return (h,) if i + 1 == self.shape.sublayers else self._connect(h, i + 1)

    def finish(self, state: State) -> Float[Tensor, "*tokens width"]:
        return state[0].sum(-2)

    def carried(self, state: State) -> Float[Tensor, "*tokens width"]:
        """The mean of the streams, so that its size compares with that of a single one."""
        return state[0].mean(-2)

    def mixing(self, outputs: Sequence[Float[Tensor, "*tokens width"]]) -> Float[Tensor, "reads sources *tokens"]:
        """As in `Stream`: M[l, i] = into_l mix_(l-1) ... mix_(i+1) out_i (arXiv 2603.15031, section 6.2)."""
        state, rows = self.start(outputs[0]), []
        shares = outputs[0].new_zeros(*outputs[0].shape[:-1], self.streams, len(outputs))  # of each source in each H_j
        shares[..., 0] = 1
        for i in range(self.shape.sublayers):
            into, out, mix = self.connections(state[0], i)
            rows.append((into.unsqueeze(-2) @ shares).squeeze(-2))
            shares = shares.clone() if mix is None else mix @ shares
            shares[..., i + 1] = out
            state = self.write(state, i, outputs[i + 1])
        rows.append(shares.sum(-2))
        return torch.stack(rows).movedim(-1, 1)

    def _connect(self, h: Float[Tensor, "*tokens n width"], i: int) -> State:
        with torch.autocast(h.device.type, enabled=False):
            into, out, mix = self.connections(h, i)
            if mix is None:
                return (h, (into.unsqueeze(-1) * h).sum(-2), h, out)
            read, mixed = (torch.cat((into.unsqueeze(-2), mix), -2) @ h).split([1, self.streams], -2)
            return (h, read.squeeze(-2), mixed, out)


def inverse_rms(x: Float[Tensor, "*rows features"], eps: float) -> Float[Tensor, "*rows 1"]:
    """One over the root of the mean square of each row: a projection of a normed row is that of the row, times this."""
    return (torch.linalg.vector_norm(x, dim=-1, keepdim=True).square() / x.shape[-1] + eps).rsqrt()


def one_of(n: int, i: int, chosen: float, others: float) -> Float[Tensor, " n"]:
    """`chosen` at stream i modulo n, `others` elsewhere: sublayers take turns, or all streams would stay equal."""
    values = torch.full((n,), others)
    values[i % n] = chosen
    return values
