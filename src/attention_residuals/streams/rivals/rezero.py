"""ReZero: every output is added with a learned scalar that starts at zero.

    h_(l+1) = h_l + a_l f_l(h_l)        a_l = 0 at the start

From Bachlechner et al., arXiv 2003.04887, section 3: the network starts as the identity. Outputs start at the size of
their input, as there, without the 1/sqrt(L) of a plain sum: the scalar is what scales them.

Choice: the authors' Transformer has no norms. Here f_l includes its own pre-norm, as Table 5 of arXiv 2603.15031 has it
and as for every scheme; `build(pre_norm=False)` is the authors' form, for sublayers without one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from attention_residuals.streams.base import Residual, State, StreamShape
from attention_residuals.streams.parameters import DepthCoefficients
from attention_residuals.streams.rivals.mixing import fixed_mixing
from attention_residuals.streams.rivals.running import RunningStream


@final
@dataclass(frozen=True)
class ReZero(Residual):
    """A scalar per sublayer, zero at the start; formula and choices at the head of this file."""

    def _build(self, shape: StreamShape) -> "ReZeroStream":
        return ReZeroStream(shape)


@final
class ReZeroStream(RunningStream):
    """State: `(h,)`."""

    def __init__(self, shape: StreamShape):
        super().__init__(shape)
        self.gains = DepthCoefficients({i: partial(torch.zeros, 1) for i in range(shape.sublayers)})

    @property
    def output_scale(self) -> float:
        return 1.0

    def write(self, state: State, i: int, output: Float[Tensor, "*tokens width"]) -> State:
        h = state[0]
        return (torch.addcmul(h, output.to(h.dtype), self.gains[str(i)]),)

    def mixing(self, outputs: Sequence[Float[Tensor, "*tokens width"]]) -> Float[Tensor, "reads sources *tokens"]:
        return fixed_mixing(self, outputs)

    def describe(self) -> str:
        return f"ReZero over {self.shape.sublayers} sublayers"
